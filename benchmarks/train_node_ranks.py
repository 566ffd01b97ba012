"""What each rank does in train_node.py and train_node_memory.py: it trains a transformer, as many steps at a time as it is told.

    python benchmarks/train_node_ranks.py JSON      what the other scripts start

The data of a step follow from its number and the rank, and all begin with the same parameters: whoever averages, the losses are to
be the same. One thread a rank (torch.set_num_threads).
"""

import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shoal.bench.channel import ChannelClosed, Message, connect
from shoal.bench.contestants import join
from shoal.bench.part import end_with_conductor

ALONE = "alone"
LAYERS, WIDTH, HEADS, INNER, CHARACTERS = 8, 512, 8, 2048, 64


class Network(nn.Module):
    """Guesses characters of a text, each from those before it. 25 M parameters, nearly all in its 8 layers."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.positions = nn.Embedding(length, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CHARACTERS)
        self.register_buffer("before", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.positions.weight
        guessed: Tensor = self.head(self.layers(x, mask=self.before, is_causal=True))
        return guessed


class Training:
    """``wrap``: makes the module one that averages. ``sequences``, ``length``: of the texts of a step, on each rank."""

    def __init__(
        self, rank: int, wrap: Callable[[nn.Module], nn.Module], sequences: int, length: int, momentum: float
    ) -> None:
        torch.manual_seed(5)
        self._network = Network(length)
        self._module = wrap(self._network)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.002, momentum=momentum)
        self._rank, self._sequences, self._length = rank, sequences, length
        self._number = 0

    def run(self, count: int) -> Message:
        """So many steps. When the first began and the last ended, in nanoseconds, and each step's loss on this rank."""
        texts = [self._texts(self._number + index) for index in range(count)]
        self._number += count
        cpu, began = _cpu_seconds(), time.monotonic_ns()
        losses = [self._step(text) for text in texts]
        ended = time.monotonic_ns()
        return {
            "start": began,
            "end": ended,
            "cpu": _cpu_seconds() - cpu,
            "losses": [float(loss) for loss in losses],
        }

    def digest(self) -> Message:
        """Of the bits of all parameters; and how many bytes those are."""
        found, size = hashlib.sha256(), 0
        for parameter in self._network.parameters():
            found.update(parameter.detach().numpy().tobytes())
            size += parameter.nbytes
        return {"digest": found.hexdigest(), "bytes": size}

    def _step(self, text: Tensor) -> Tensor:
        self._optimizer.zero_grad()
        guessed = self._module(text[:, :-1])
        loss = nn.functional.cross_entropy(guessed.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def _texts(self, step: int) -> Tensor:
        """Each goes round the alphabet with a stride of its own, so there is something to learn."""
        chance = torch.Generator().manual_seed(1_000 * step + self._rank)
        begin = torch.randint(CHARACTERS, (self._sequences, 1), generator=chance)
        stride = torch.randint(1, 5, (self._sequences, 1), generator=chance)
        return (begin + stride * torch.arange(self._length + 1)) % CHARACTERS


def wrapper(library: str) -> Callable[[nn.Module], nn.Module]:
    if library == ALONE:
        return lambda module: module
    if library == "gloo":
        return lambda module: nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
    from shoal.torch import DistributedDataParallel

    return DistributedDataParallel


def take_part(text: str) -> None:
    asked = json.loads(text)
    channel = connect(asked["control"])
    end_with_conductor(channel)
    torch.set_num_threads(1)
    library = asked["library"].partition(" ")[0]
    rank, version, close = _join(library, dict(asked["joining"]))
    channel.send(
        {"token": asked["token"], "rank": rank, "size": asked["size"], "pid": os.getpid(), "machine": "this"}
        | {"versions": {asked["library"]: version}}
    )
    training: Training | None = None
    try:
        while (command := channel.receive())["do"] != "quit":
            if command["do"] == "begin":
                training = Training(rank, wrapper(library), **asked["arguments"])
                channel.send({})
            elif command["do"] == "steps":
                assert training is not None
                channel.send(training.run(command["count"]))
            else:
                assert training is not None
                channel.send(training.digest())
    except ChannelClosed:
        os._exit(1)
    channel.close()
    close()


def _join(library: str, joining: Mapping[str, Any]) -> tuple[int, str, Callable[[], None]]:
    """The rank, the library's version, and how to leave."""
    if library == ALONE:
        return int(joining["rank"]), f"torch {torch.__version__}", lambda: None
    if "store" in joining:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        place = joining["store"]
        store = TCPStore(place["host"], place["port"], place["size"], is_master=place["rank"] == 0)
        joining = {"store": store, "rank": place["rank"], "size": place["size"]}
    joined = join(library, joining)
    return joined.rank, joined.version, joined.close


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    take_part(sys.argv[1])
