"""What the ranks of the stage "stress" do: they train a small network and do everything on the way that could show a
missing wait.

Gradients are made in three streams, late, and in another order from time to time. Where nothing should be read there
is NaN: in the host's mirrors of gradients before each pass, and in memory that PyTorch's allocator gets back.
Gradients are cleared in both ways, and some are kept by the program, which makes Shoal leave its arena to them. In
float64, so that what differs from one process is the last bits alone.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import stage
import torch
import torch.distributed as dist
from torch import Tensor, nn

import shoal.torch
from shoal.gradients import arrival_order
from shoal.torch import pinned_memory

BRANCHES, WIDTH, BATCH = 3, 256, 16
LATEST = 0.002  # seconds by which a gradient is late at most
NAN_EVERY, KEEP_EVERY = 3, 20


class Late(torch.autograd.Function):
    """What it is given; the gradient comes late, in its stream."""

    @staticmethod
    def forward(context: Any, value: Tensor, device: stage.Device | None, seconds: float) -> Tensor:
        context.device, context.seconds = device, seconds
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        if context.device is not None:
            context.device.be_late(context.seconds)
        return gradients[0], None, None


class Branches(nn.Module):
    """One layer, three branches, each in a stream of its own, one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, WIDTH)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(BRANCHES)
        )
        self.last = nn.Linear(WIDTH, 10)
        self.order = list(range(BRANCHES))
        self.device: stage.Device | None = None
        self.streams: list[Any] = [None] * BRANCHES
        self.late = [0.0] * BRANCHES

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.first(inputs)
        made: list[Tensor] = [x] * BRANCHES
        for index in self.order:
            if self.device is None:
                made[index] = self.branches[index](x)
                continue
            with self.device.inside(self.streams[index]):
                self.device.uses(x, self.streams[index])
                branch = self.branches[index](x)
                made[index] = Late.apply(branch, self.device, self.late[index])  # type: ignore[no-untyped-call]
        if self.device is not None:
            self.device.join(self.streams, made)
        result: Tensor = self.last(made[0] + made[1] + made[2])
        return result


def make(place: torch.device) -> Branches:
    torch.manual_seed(0)
    return Branches().double().to(place)


def batch(step: int, part: int, parts: int, place: torch.device) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 32, dtype=torch.float64, generator=chance).chunk(parts)[part]
    labels = torch.randint(10, (BATCH,), generator=chance).chunk(parts)[part]
    return inputs.to(place), nn.functional.one_hot(labels, 10).double().to(place)


def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, of operations that are deterministic on every device. ``labels``: one-hot."""
    return -(nn.functional.log_softmax(outputs, 1) * labels).sum(1).mean()


def order_in(step: int, rounds: int) -> list[int]:
    """Of the branches: another one from a tenth of the rounds on."""
    return [0, 1, 2] if step < max(2, rounds // 10) else [2, 0, 1]


def train(wrapper: str, places: Sequence[str], rounds: int, rehearses: bool) -> dict[str, Any]:
    """One rank: trains with all others, then alone. ``wrapper``: "shoal" or "torch". ``places``: "gpu" or "cpu"."""
    torch.use_deterministic_algorithms(True)
    if rehearses:
        arrival_order.FIRST_INTERVAL = 4  # so that an order is renewed in so few rounds
    shoal.torch.init()
    rank = shoal.rank()
    device = stage.Device() if places[rank] == "gpu" else None
    place = torch.device("cpu") if device is None else device.place
    model = make(place)
    if wrapper == "shoal":
        wrapped: nn.Module = shoal.torch.DistributedDataParallel(model, fusion_mb=1)
    else:
        dist.init_process_group("shoal")
        wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    model.device = device
    if device is not None:
        model.streams = device.streams(BRANCHES)
    seen = _rounds(wrapped, model, device, place, rounds)
    found = _flat(model)
    if wrapper == "torch":
        dist.destroy_process_group()
    shoal.shutdown()
    alone = make(place)
    optimizer = _optimizer(alone)
    for step in range(rounds):
        optimizer.zero_grad()
        inputs, labels = batch(step, 0, 1, place)
        loss_of(alone(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    expected = _flat(alone)
    return seen | {
        "difference": float((found - expected).abs().max()) if bool(found.isfinite().all()) else None,
        "moved": float((expected - _flat(make(place))).abs().max()),
        "digest": hashlib.sha256(found.numpy().tobytes()).hexdigest(),
    }


def _rounds(
    wrapped: nn.Module, model: Branches, device: stage.Device | None, place: torch.device, rounds: int
) -> dict[str, Any]:
    """What happened on the way."""
    rank, size = shoal.rank(), shoal.size()
    chance = random.Random(rank)
    optimizer = _optimizer(model)
    parameters = list(model.parameters())
    orders: list[list[int]] = []
    arenas: set[int] = set()
    kept = wrong = 0
    held: tuple[Tensor, Tensor] | None = None
    for step in range(rounds):
        model.order = order_in(step, rounds)
        model.late = [chance.uniform(0, LATEST) for _ in range(BRANCHES)]
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        inputs, labels = batch(step, rank, size, place)
        loss = loss_of(wrapped(inputs), labels)
        if device is not None:
            churn(device, chance)
            if step % NAN_EVERY == 0:
                spoil_mirrors(device, wrapped)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if held is not None:
            kept += 1
            wrong += not torch.equal(*held)
            held = None
        if step % KEEP_EVERY == 1:
            of = parameters[(step // KEEP_EVERY) % len(parameters)]
            assert of.grad is not None
            held = of.grad, of.grad.clone()
            of.grad = None
        if isinstance(wrapped, shoal.torch.DistributedDataParallel):
            now = wrapped._reducer.arenas
            arenas.add(now.buffers[0].memory.data_ptr())
            if not orders or orders[-1] != now.order:
                orders.append(list(now.order))
    if device is not None:
        device.synchronize()
    return {"orders": len(orders), "arenas": len(arenas), "kept": kept, "kept and changed": wrong}


def churn(device: stage.Device, chance: random.Random) -> None:
    """Memory full of NaN goes back to PyTorch's allocator, from several streams."""
    for stream in device.streams(2):
        with device.inside(stream):
            for _ in range(3):
                torch.full((chance.randrange(1, 1 << 18),), float("nan"), dtype=torch.float64, device=device.place)


def spoil_mirrors(device: stage.Device, wrapped: nn.Module) -> None:
    """Where nothing has been copied yet, the host has NaN: in mirrors of arenas, in free memory of operations."""
    device.synchronize()
    if isinstance(wrapped, shoal.torch.DistributedDataParallel):
        for buffer in wrapped._reducer.arenas.buffers:
            if buffer.mirror is not None:
                buffer.mirror.fill_(float("nan"))
        return
    for blocks in list(pinned_memory.OF_OPERATIONS._free.values()):
        for _, block in blocks:
            block.memory.fill_(255)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])
