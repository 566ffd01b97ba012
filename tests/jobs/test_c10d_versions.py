"""What differs between PyTorch's versions in how it calls a process group: to be right on each of them."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import shoal.torch.c10d.process_group as ours
from shoal.testing import run_ranks
from shoal.torch import versions


class Found(NamedTuple):
    """``started``: Shoal's operations behind each form of a collective. ``sum``: of 200 functional all-reduces in flight.
    ``numbers``: of operations that follow each other. ``timeout``: in seconds."""

    started: dict[str, list[str]]
    sum: float
    numbers: list[int]
    timeout: float
    reconfigurable: bool


class Divided(NamedTuple):
    """``rank``: in the group. ``by_pytorch``: a sum in a group that ``dist.split_group`` has made, on versions that can."""

    rank: int
    sum: float
    name: str
    known: bool
    by_pytorch: float | None


def called_in_each_way() -> Found:
    dist.init_process_group("shoal")
    found = Found(_started(), _in_flight(200), *_what_works_tell(), dist.group.WORLD.supports_reconfigure)
    dist.destroy_process_group()
    return found


def _started() -> dict[str, list[str]]:
    size = dist.get_world_size()
    calls: list[str] = []
    start = ours.ShoalProcessGroup._start

    def watched(self: ours.ShoalProcessGroup, called: str, *args: object) -> object:
        calls.append(called)
        return start(self, called, *args)

    ours.ShoalProcessGroup._start = watched  # type: ignore[assignment, method-assign]
    own, parts, world = torch.ones(2), torch.ones(2 * size), dist.group.WORLD
    found = {}

    def note(form: str, *results: torch.Tensor) -> None:
        for result in results:
            assert set((result + 0).tolist()) <= {1.0, float(size)}, form
        found[form] = calls.copy()
        calls.clear()

    note("all_gather", functional.all_gather_tensor(own, 0, world))
    note("reduce_scatter", functional.reduce_scatter_tensor(parts, "sum", 0, world))
    note("all_gathers", *functional.all_gather_into_tensor_coalesced([own, own], world))
    note("reduce_scatters", *functional.reduce_scatter_tensor_coalesced([parts, parts], "sum", [0, 0], world))
    outputs = [torch.empty(2 * size) for _ in range(2)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.all_gather_into_tensor(output, own)
    note("coalescing manager", *outputs)
    ours.ShoalProcessGroup._start = start  # type: ignore[method-assign]
    return found


def _in_flight(count: int) -> float:
    """None of them is waited for before all have been called."""
    sums = [functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD) for _ in range(count)]
    return sum(float((each + 0).sum()) for each in sums)


def _what_works_tell() -> tuple[list[int], float]:
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    numbers = [work._get_sequence_number() for work in works]
    for work in works:
        work.wait()
    return numbers, works[0].timeout.total_seconds()


def divided() -> Divided | None:
    """Ranks 2 and 0 of three, in that order, in a group that PyTorch does not know: libraries make such, to keep it for themselves."""
    dist.init_process_group("shoal")
    group = dist.group.WORLD.split_group([2, 0], group_name="two of them")
    by_pytorch = _split_by_pytorch() if versions.RELEASE >= (2, 15) else None
    found = None
    if group is not None:
        total = torch.full((1,), float(dist.get_rank()))
        group.allreduce([total]).wait()
        known = group in dist.distributed_c10d._world.pg_map
        found = Divided(group.rank(), float(total), group.group_name, known, by_pytorch)
    dist.barrier()
    dist.destroy_process_group()
    return found


def _split_by_pytorch() -> float:
    """It takes groups on the CPU since PyTorch 2.15."""
    group = dist.split_group(split_ranks=[[1, 0, 2]])
    assert dist.get_group_rank(group, 0) == 1
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    return float(total)


def test_every_form_of_a_collective_goes_by_shoal_and_hundreds_may_be_in_flight() -> None:
    gather, scatter = "all_gather_into_tensor", "reduce_scatter_tensor"
    for found in run_ranks(called_in_each_way, 2):
        assert found.started == {
            "all_gather": [gather],
            "reduce_scatter": [scatter],
            "all_gathers": [gather] * 2,
            "reduce_scatters": [scatter] * 2,
            "coalescing manager": [gather] * 2,
        }
        assert found.sum == 200 * 3 * 2.0
        assert found.numbers == list(range(found.numbers[0], found.numbers[0] + 3))
        assert found.timeout > 0
        assert found.reconfigurable is False


def test_a_group_is_divided() -> None:
    by_pytorch = 3.0 if versions.RELEASE >= (2, 15) else None
    two = [Divided(rank, 2.0, "two of them", False, by_pytorch) for rank in range(2)]
    assert run_ranks(divided, 3) == [two[1], None, two[0]]
