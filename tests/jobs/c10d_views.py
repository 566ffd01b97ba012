"""What the ranks of test_c10d_views.py do: every operation of the backend "shoal" on tensors that are not contiguous."""

from typing import Any

import torch
import torch.distributed as dist

# How a tensor of the given values may lie in memory.
LAYOUTS = ("contiguous", "strided", "transposed", "offset")
DTYPES = ("float32", "float64", "bfloat16", "int64", "int8", "uint8", "bool", "complex64")
BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


class Laid:
    """A tensor in memory whose other elements must stay as they are."""

    def __init__(self, values: torch.Tensor, layout: str) -> None:
        rows, columns = values.shape
        if layout == "strided":
            self.memory = torch.ones(2 * rows, 3 * columns, dtype=values.dtype)
            self.tensor = self.memory[::2, 1::3]
        elif layout == "transposed":
            self.memory = torch.ones(columns, rows + 1, dtype=values.dtype)
            self.tensor = self.memory[:, :rows].t()
        else:
            begin = int(layout == "offset")
            self.memory = torch.ones(rows + 2 * begin, columns, dtype=values.dtype)
            self.tensor = self.memory[begin : begin + rows]
        self.tensor.copy_(values)

    def check(self, expected: torch.Tensor, what: str) -> None:
        assert torch.equal(self.tensor, expected), (what, self.tensor, expected)
        self.tensor.fill_(1)
        assert bool((self.memory == 1).all()), f"{what} has written beside its tensor"


def values_of(rank: int, shape: tuple[int, int], dtype: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(-3 if dtype not in ("uint8", "bool") else 0, 4, shape, generator=generator).to(
        getattr(torch, dtype)
    )


def reduced(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    if op in BITWISE:
        total = parts[0]
        for part in parts[1:]:
            total = BITWISE[op](total, part)
        return total
    stacked = torch.stack(parts)
    if parts[0].dtype == torch.bool:
        return stacked.any(0) if op in ("SUM", "MAX") else stacked.all(0)
    if op in ("MIN", "MAX"):
        return stacked.amin(0) if op == "MIN" else stacked.amax(0)
    total = stacked.sum(0).to(parts[0].dtype)
    if op == "AVG":
        integers = not (total.is_floating_point() or total.is_complex())
        if total.is_complex():
            return torch.view_as_complex(torch.view_as_real(total) / len(parts))
        return torch.div(total, len(parts), rounding_mode="trunc") if integers else total / len(parts)
    return total


def operators_of(dtype: str) -> list[str]:
    if dtype == "complex64":
        return ["SUM", "AVG"]
    ordered = ["SUM", "MIN", "MAX"] if dtype == "bool" else ["SUM", "AVG", "MIN", "MAX"]
    return ordered if "float" in dtype else [*ordered, *BITWISE]


def run_cases(cases: list[tuple[int, int, int, str, str, str]]) -> int:
    dist.init_process_group("shoal")
    for case in cases:
        _run(*case)
    dist.barrier()
    dist.destroy_process_group()
    return len(cases)


def _run(seed: int, rows: int, columns: int, dtype: str, given: str, taken: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    own = values_of(rank, (rows, columns), dtype, seed)
    every = [values_of(other, (rows, columns), dtype, seed) for other in range(size)]
    root = seed % size

    def laid() -> Laid:
        return Laid(torch.zeros_like(own), taken)

    for name in operators_of(dtype):
        op, total, whole = getattr(dist.ReduceOp, name), reduced(every, name), own.dtype
        target = Laid(own, given)
        _finish(dist.all_reduce(target.tensor, op, async_op=True), seed)
        target.check(total, f"all_reduce {name} {whole}")
        target = Laid(own, given)
        _finish(dist.reduce(target.tensor, root, op, async_op=True), seed)
        target.check(total if rank == root else own, f"reduce {name}")
        target = laid()
        _finish(dist.reduce_scatter(target.tensor, [Laid(own, given).tensor] * size, op, async_op=True), seed)
        target.check(total, f"reduce_scatter {name}")
        target, source = laid(), Laid(torch.cat([own] * size), given)
        dist.reduce_scatter_tensor(target.tensor, source.tensor, op)
        target.check(total, f"reduce_scatter_tensor {name}")

    target = Laid(own, given)
    dist.broadcast(target.tensor, root)
    target.check(every[root], "broadcast")
    targets = [laid() for _ in range(size)]
    dist.all_gather([one.tensor for one in targets], Laid(own, given).tensor)
    for one, expected in zip(targets, every, strict=True):
        one.check(expected, "all_gather")
    target = Laid(torch.zeros(rows * size, columns, dtype=own.dtype), taken)
    dist.all_gather_into_tensor(target.tensor, Laid(own, given).tensor)
    target.check(torch.cat(every), "all_gather_into_tensor")
    targets = [laid() for _ in range(size)] if rank == root else []
    outputs: Any = [one.tensor for one in targets] or None
    _finish(dist.gather(Laid(own, given).tensor, outputs, root, async_op=True), seed)
    for one, expected in zip(targets, every if targets else [], strict=True):
        one.check(expected, "gather")
    target = laid()
    sources = [Laid(each, given).tensor for each in every] if rank == root else None
    _finish(dist.scatter(target.tensor, sources, root, async_op=True), seed)
    target.check(own, "scatter")
    targets = [laid() for _ in range(size)]
    dist.all_to_all([one.tensor for one in targets], [Laid(own, given).tensor] * size)
    for one, expected in zip(targets, every, strict=True):
        one.check(expected, "all_to_all")
    target = laid()
    sent = dist.isend(Laid(own, given).tensor, (rank + 1) % size)
    received = dist.irecv(target.tensor, (rank - 1) % size)
    assert sent is not None
    assert received is not None
    _finish(received, seed)
    sent.wait()
    target.check(every[rank - 1], "send and recv")


def _finish(work: Any, seed: int) -> None:
    """By ``wait`` and by the future, by turns."""
    if seed % 2:
        work.wait()
    else:
        work.get_future().wait()
