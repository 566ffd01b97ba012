"""What the operations of Horovod's door promise, for 3 ranks: functions that every rank runs, one after the other in one job.

test_horovod_torch.py runs them and says which failed where.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from horovod_scenarios import in_turn, scenario

import shoal
import shoal.horovod.torch as hvd
from shoal.horovod.common import handles
from shoal.horovod.torch import submission
from shoal.horovod.torch.mpi_ops import synchronize
from shoal.ops import operations

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def of_rank(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small numbers, so that they are exact in every dtype."""
    return torch.arange(1, 7).reshape(2, 3).to(dtype) + rank


def everyones(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([of_rank(rank, dtype) for rank in range(hvd.size())])


@scenario
def every_operator_reduces_every_dtype() -> None:
    for dtype in (*FLOATS, *INTEGERS):
        mine, all_of_them = of_rank(hvd.rank(), dtype), everyones(dtype)
        assert torch.equal(hvd.allreduce(mine, op=hvd.Sum), all_of_them.sum(0).to(dtype))
        assert torch.equal(hvd.allreduce(mine, op=hvd.Min), all_of_them.amin(0))
        assert torch.equal(hvd.allreduce(mine, op=hvd.Max), all_of_them.amax(0))
        assert torch.equal(hvd.allreduce(mine, op=hvd.Product), all_of_them.prod(0).to(dtype))
        assert torch.equal(hvd.allreduce(mine), of_rank(1, dtype))
        assert torch.equal(mine, of_rank(hvd.rank(), dtype)), "the tensor that was given has changed"


@scenario
def an_average_of_integers_is_the_sum_cut_toward_zero() -> None:
    mine = torch.tensor([-1, 1, 5, -5], dtype=torch.int32) * (hvd.rank() + 1)
    assert hvd.allreduce(mine, op=hvd.Average).tolist() == [-2, 2, 10, -10]
    assert hvd.allreduce(torch.tensor([hvd.rank() - 5])).tolist() == [-4]
    assert hvd.allreduce(torch.tensor([2 if hvd.rank() else -4])).tolist() == [0]
    assert hvd.allreduce(torch.tensor([-1 if hvd.rank() else 0])).tolist() == [0], "-2 / 3"


@scenario
def factors_are_applied_before_and_after() -> None:
    mine = of_rank(hvd.rank())
    assert torch.allclose(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5), everyones().sum(0) * 0.5)
    assert torch.allclose(hvd.allreduce(mine, op=hvd.Sum, postscale_factor=0.25), everyones().sum(0) * 0.25)
    assert torch.allclose(hvd.allreduce(mine, prescale_factor=2.0, postscale_factor=3.0), everyones().mean(0) * 6)
    # Integers: each rank's are cut before they are added.
    counts = torch.tensor([1, 2, 3])
    assert hvd.allreduce(counts, op=hvd.Sum, prescale_factor=0.5).tolist() == [0, 3, 3]
    assert hvd.allreduce(counts, op=hvd.Sum, postscale_factor=0.5).tolist() == [1, 3, 4]
    half = hvd.allreduce_(torch.full((3,), 3.0, dtype=torch.float16), op=hvd.Sum, postscale_factor=1 / 3)
    assert half.dtype == torch.float16
    assert half.tolist() == [3.0] * 3
    rows = hvd.reducescatter(torch.ones(3, 2), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
    assert rows.tolist() == [[3.0, 3.0]]


@scenario
def the_older_argument_average_chooses_the_operator() -> None:
    with pytest.warns(DeprecationWarning, match="say op="):
        assert hvd.allreduce(torch.ones(1), average=False).item() == 3
    with pytest.raises(ValueError, match="leave out average"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match=r"is none of hvd\.Average"):
        hvd.allreduce(torch.ones(1), op=17)


@scenario
def forms_in_place_fill_their_tensor_and_return_it() -> None:
    mine = of_rank(hvd.rank())
    assert hvd.allreduce_(mine, op=hvd.Sum) is mine
    assert torch.equal(mine, everyones().sum(0))
    sent = of_rank(hvd.rank())
    assert hvd.broadcast_(sent, 2) is sent
    assert torch.equal(sent, of_rank(2))
    transposed = of_rank(hvd.rank()).t()
    hvd.allreduce_(transposed, op=hvd.Max)
    assert torch.equal(transposed, of_rank(2).t()), "memory that is not contiguous"
    parameter = torch.nn.Parameter(of_rank(hvd.rank()))
    hvd.broadcast_(parameter, 1)
    assert torch.equal(parameter.detach(), of_rank(1))


@scenario
def operations_are_in_flight_until_they_are_synchronized() -> None:
    handles = [hvd.allreduce_async(of_rank(hvd.rank()) * place, op=hvd.Sum) for place in range(20)]
    assert all(isinstance(handle, int) for handle in handles)
    assert len(set(handles)) == 20
    for place, handle in reversed(list(enumerate(handles))):
        assert torch.equal(synchronize(handle), everyones().sum(0) * place)
    assert synchronize(handles[0]) is None, "a second time"
    with pytest.raises(ValueError, match="was waited for"):
        hvd.poll(handles[0])
    late = hvd.broadcast_async(torch.ones(1), 0)
    while not hvd.poll(late):
        pass
    assert synchronize(late).item() == 1


@scenario
def a_handle_is_not_done_before_all_ranks_have_called() -> None:
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="early")
        assert not hvd.poll(handle)
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(torch.ones(2), name="early")
    assert synchronize(handle).tolist() == [1, 1]


@scenario
def a_name_in_flight_is_refused_and_free_again_afterwards() -> None:
    for _ in range(20):
        if hvd.rank() == 0:
            first = hvd.allreduce_async(torch.ones(3), name="twice")
        hvd.barrier()
        if hvd.rank() != 0:
            first = hvd.allreduce_async(torch.ones(3), name="twice")
            with pytest.raises(ValueError, match="still on its way"):
                hvd.allreduce_async(torch.ones(3), name="twice")
        # Another operation of that name is another one.
        gathered = hvd.allgather_async(torch.ones(1), name="twice")
        assert synchronize(first).tolist() == [1, 1, 1]
        assert synchronize(gathered).tolist() == [1, 1, 1]


@scenario
def names_match_calls_in_any_order() -> None:
    names = [f"in any order {place}" for place in range(6)]
    tensors = {name: torch.full((4,), float(place)) for place, name in enumerate(names)}
    order = names if hvd.rank() == 0 else list(reversed(names))
    handles = {name: hvd.allreduce_async(tensors[name], name=name, op=hvd.Sum) for name in order}
    for name in names:
        assert torch.equal(synchronize(handles[name]), 3 * tensors[name])


@scenario
def groups_are_reduced_together() -> None:
    mine = [of_rank(hvd.rank()), of_rank(hvd.rank(), torch.int64), torch.tensor(float(hvd.rank()))]
    summed = hvd.grouped_allreduce(mine, op=hvd.Sum)
    assert [type(each) for each in (summed, summed[0])] == [list, torch.Tensor]
    assert torch.equal(summed[0], everyones().sum(0))
    assert torch.equal(summed[1], everyones(torch.int64).sum(0))
    assert summed[2].item() == 3
    filled = hvd.grouped_allreduce_(mine, name="group", op=hvd.Max)
    assert all(one is other for one, other in zip(filled, mine, strict=True))
    assert torch.equal(mine[0], of_rank(2))
    gathered = hvd.grouped_allgather([torch.full((hvd.rank(), 2), 1.0), torch.tensor([hvd.rank()])], name="gathered")
    assert gathered[0].shape == (3, 2)
    assert gathered[1].tolist() == [0, 1, 2]
    rows = hvd.grouped_reducescatter([torch.ones(3), torch.ones(6, 2)], op=hvd.Sum)
    assert [each.tolist() for each in rows] == [[3.0], [[3.0, 3.0]] * 2]
    halves = hvd.grouped_allreduce([torch.ones(2), torch.ones(1, dtype=torch.int32)], compression=hvd.Compression.bf16)
    assert [each.dtype for each in halves] == [torch.float32, torch.int32]


@scenario
def gathers_and_exchanges_take_different_numbers_of_rows() -> None:
    mine = torch.full((hvd.rank() + 1, 2), hvd.rank(), dtype=torch.int16)
    assert hvd.allgather(mine)[:, 0].tolist() == [0, 1, 1, 2, 2, 2]
    assert hvd.allgather(torch.tensor([hvd.rank() != 1])).tolist() == [True, False, True]
    tensor = torch.arange(6) + 10 * hvd.rank()
    received, counts = hvd.alltoall(tensor, splits=torch.tensor([1, 2, 3]))
    assert counts.dtype == torch.int64
    assert counts.tolist() == [hvd.rank() + 1] * 3
    begin = (0, 1, 3)[hvd.rank()]
    assert received.tolist() == [10 * rank + begin + i for rank in range(3) for i in range(hvd.rank() + 1)]
    assert torch.equal(hvd.alltoall(tensor)[:2], torch.arange(2) + 2 * hvd.rank())
    output, counts = synchronize(hvd.alltoall_async(tensor))
    assert (output.shape, counts.tolist()) == ((6,), [2, 2, 2])
    for wrong in ([1, 1], [7, 0, 0], torch.ones(3)):
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(tensor, splits=wrong)


@scenario
def an_exchange_sends_the_first_rows_that_the_splits_add_up_to() -> None:
    tensor = (torch.arange(8.0) + 10 * hvd.rank()).requires_grad_()
    received, counts = hvd.alltoall(tensor, splits=[1, 0, 2])
    assert counts.tolist() == [(1, 0, 2)[hvd.rank()]] * 3
    assert received.tolist() == [10 * rank + i for rank in range(3) for i in ((0,), (), (1, 2))[hvd.rank()]]
    (received.sum() * (hvd.rank() + 1)).backward()
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [1, 3, 3, 0, 0, 0, 0, 0]


@scenario
def rows_may_have_no_elements() -> None:
    mine = torch.ones(hvd.rank() + 1, 0, 2, dtype=torch.int16)
    gathered = hvd.allgather(mine)
    assert (gathered.shape, gathered.dtype) == ((6, 0, 2), torch.int16)
    assert [each.shape for each in hvd.grouped_allgather([mine, mine])] == [(6, 0, 2)] * 2
    received, counts = hvd.alltoall(torch.ones(6, 0), splits=[1, 2, 3])
    assert received.shape == (3 * (hvd.rank() + 1), 0)
    assert counts.tolist() == [hvd.rank() + 1] * 3
    assert hvd.alltoall(torch.ones(6, 0)).shape == (6, 0)
    assert hvd.allgather(torch.ones(0, 0)).shape == (0, 0)


@scenario
def exceptions_are_those_that_scripts_for_horovod_catch() -> None:
    scalar = torch.tensor(1.0)
    for call in (hvd.allgather, hvd.reducescatter, hvd.alltoall):
        with pytest.raises(hvd.HorovodInternalError, match="at least one dimension") as raised:
            call(scalar)
        assert isinstance(raised.value, ValueError)
    strange = torch.ones(2, dtype=torch.complex64), torch.eye(2).to_sparse()
    for tensor in strange:
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, lambda given: hvd.broadcast(given, 0)):
            with pytest.raises(ValueError, match=r"not supported|only dense") as raised:
                call(tensor)
            assert isinstance(raised.value, TypeError)
            assert not isinstance(raised.value, hvd.HorovodInternalError)


@scenario
def a_second_call_may_come_while_one_with_a_name_starts() -> None:
    """As from a signal's handler."""
    group = hvd.global_process_set.group
    inner = []

    def interrupted() -> Any:
        inner.append(hvd.allreduce_async(torch.ones(1), name="of the handler"))
        with pytest.raises(ValueError, match="still on its way"):
            handles.start_named("interrupted", group, interrupted)
        return submission.barrier(group, operations.barrier)

    handles.start_named("interrupted", group, interrupted).wait()
    assert synchronize(inner[0]).item() == 1

    def failing() -> Any:
        raise ValueError("cannot start")

    for _ in range(2):
        with pytest.raises(ValueError, match="cannot start"):
            handles.start_named("interrupted again", group, failing)


@scenario
def a_reducescatter_gives_the_first_ranks_a_row_more() -> None:
    tensor = torch.arange(10.0).reshape(5, 2)
    rows = hvd.reducescatter(tensor, op=hvd.Sum)
    begin, end = ((0, 2), (2, 4), (4, 5))[hvd.rank()]
    assert torch.equal(rows, 3 * tensor[begin:end])
    with pytest.raises(hvd.HorovodInternalError, match="Average or Sum"):
        hvd.reducescatter(tensor, op=hvd.Max)
    assert hvd.reducescatter(torch.ones(5, 0), op=hvd.Sum).shape == (end - begin, 0)


@scenario
def sparse_tensors_are_gathered() -> None:
    dense = torch.zeros(6, 2)
    dense[hvd.rank()] = 1.0
    dense[5] = 3.0
    wait = hvd.sparse_allreduce_async(dense.to_sparse(1), name="sparse", op=hvd.Average)
    mean = wait().to_dense()
    assert torch.allclose(mean, hvd.allreduce(dense))
    summed = hvd.sparse_allreduce_async(torch.zeros(2, 2).to_sparse(1), name="empty", op=hvd.Sum)()
    assert summed.to_dense().tolist() == [[0, 0], [0, 0]]


@scenario
def gradients_flow_through_operations() -> None:
    def gradient(operation: Any) -> torch.Tensor:
        tensor = of_rank(hvd.rank()).requires_grad_()
        result = operation(tensor)
        (result * (hvd.rank() + 1)).sum().backward()
        assert tensor.grad is not None
        return tensor.grad

    # Each rank's loss has the factor rank + 1: their sum is 6, their mean 2.
    assert torch.equal(gradient(lambda t: hvd.allreduce(t, op=hvd.Sum)), torch.full((2, 3), 6.0))
    assert torch.equal(gradient(lambda t: hvd.allreduce(t)), torch.full((2, 3), 2.0))
    assert torch.equal(gradient(lambda t: hvd.allreduce(t, compression=hvd.Compression.fp16)), torch.full((2, 3), 2.0))
    assert torch.equal(gradient(lambda t: hvd.grouped_allreduce([t])[0]), torch.full((2, 3), 2.0))
    assert torch.equal(gradient(lambda t: hvd.allgather(t)), torch.full((2, 3), 2.0))
    assert torch.equal(gradient(lambda t: hvd.grouped_allgather([t])[0]), torch.full((2, 3), 2.0))
    at_root = 2.0 if hvd.rank() == 1 else 0.0
    assert torch.equal(gradient(lambda t: hvd.broadcast(t, 1)), torch.full((2, 3), at_root))
    back = gradient(lambda t: hvd.alltoall(t.reshape(6, 1), splits=[2, 2, 2])[0])
    assert back.reshape(6).tolist() == [1, 1, 2, 2, 3, 3]
    scattered = gradient(lambda t: hvd.reducescatter(t.reshape(6), op=hvd.Sum))
    assert scattered.reshape(6).tolist() == [3, 3, 6, 6, 9, 9]
    scattered = gradient(lambda t: hvd.grouped_reducescatter([t.reshape(6)])[0])
    assert scattered.reshape(6).tolist() == [1, 1, 2, 2, 3, 3]


@scenario
def gradients_of_gradients_flow_on_all_ranks() -> None:
    def second(operation: Any) -> list[float]:
        """Of the sum of y², where y is what comes of x²."""
        tensor = torch.tensor([1.0, 2.0, 3.0, 4.0]).requires_grad_()
        loss = operation(tensor.square()).square().sum()
        (first,) = torch.autograd.grad(loss, tensor, create_graph=True)
        (gradient,) = torch.autograd.grad(first.sum(), tensor)
        return [round(3 * each) for each in gradient.tolist()]

    # The root's: 4x², and 8x² of which all-reduces of nothing else than the root's make a third.
    at_root = [20 * x * x for x in (1, 2, 3, 4)]
    assert second(lambda t: hvd.broadcast(t, 1)) == (at_root if hvd.rank() == 1 else [0] * 4)
    assert second(lambda t: hvd.alltoall(t, splits=[1, 1, 1])[0]) == [36, 144, 324, 0]


@scenario
def process_sets_limit_operations_to_their_ranks() -> None:
    outer = hvd.add_process_set([2, 0])
    single = hvd.add_process_set(hvd.ProcessSet([1]))
    assert (outer.ranks, outer.size(), single.size()) == ([0, 2], 2, 1)
    assert outer.included() == (hvd.rank() != 1)
    mine = single if hvd.rank() == 1 else outer
    assert mine.rank() == (0, 0, 1)[hvd.rank()]
    expected = {0: 2.0, 1: 2.0, 2: 2.0}[hvd.rank()]
    assert hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), process_set=mine).item() == expected
    assert hvd.allgather(torch.tensor([hvd.rank()]), process_set=mine).tolist() == ([1] if mine is single else [0, 2])
    if mine is outer:
        assert hvd.broadcast(torch.tensor([hvd.rank()]), 2, process_set=outer).item() == 2
        assert hvd.broadcast_object(hvd.rank(), root_rank=2, process_set=outer) == 2
    else:
        with pytest.raises(ValueError, match="not in ProcessSet"):
            outer.rank()
        with pytest.raises(ValueError, match="only members may call"):
            hvd.allreduce(torch.ones(1), process_set=outer)
    hvd.barrier(mine)
    with pytest.raises(ValueError, match="there is a process set of ranks"):
        hvd.add_process_set([0, 2])
    with pytest.raises(ValueError, match="none of this job's"):
        hvd.add_process_set([0, 7])
    assert hvd.remove_process_set(outer)
    assert not hvd.remove_process_set(outer)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert outer.size() is None
    again = hvd.add_process_set([0, 2])
    if hvd.rank() != 1:
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=again).item() == 2
    assert hvd.remove_process_set(again)
    assert hvd.remove_process_set(single)
    assert hvd.global_process_set.ranks == [0, 1, 2]


@scenario
def what_ranks_call_differently_is_an_error_on_all_that_names_them() -> None:
    for tensor in (torch.ones(2 + hvd.rank()), torch.ones(2, dtype=(torch.int32, torch.float32)[hvd.rank() % 2])):
        with pytest.raises(hvd.HorovodInternalError, match=r"allreduce of .*'allreduce\.different'.*rank \d") as raised:
            hvd.allreduce(tensor, name="different")
        assert isinstance(raised.value.__cause__, shoal.Mismatch)
        assert isinstance(raised.value, RuntimeError)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.broadcast(torch.ones(2), hvd.rank())
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allgather(torch.ones(2, 3 + hvd.rank()))
    with pytest.raises(hvd.HorovodInternalError):
        hvd.alltoall(torch.ones(3, dtype=(torch.int32, torch.float32)[hvd.rank() % 2]))
    with pytest.raises(hvd.HorovodInternalError):
        hvd.grouped_allreduce([torch.ones(2), torch.ones(2 + hvd.rank())])
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3, "the job goes on"


@scenario
def what_is_wrong_on_one_rank_is_an_error_on_all() -> None:
    if hvd.rank() == 1:
        with pytest.raises(TypeError, match="a tensor is wanted"):
            hvd.allreduce_async([1.0, 2.0], name="wrong on one")
    else:
        with pytest.raises(hvd.HorovodInternalError, match="a tensor is wanted"):
            hvd.allreduce(torch.ones(2), name="wrong on one")


@scenario
def a_barrier_waits_for_all_beside_other_operations() -> None:
    early = hvd.allreduce_async(torch.eye(5))
    gathered = hvd.allgather_async(torch.eye(2))
    with in_turn(0.3):
        hvd.barrier()
    assert torch.equal(synchronize(early), torch.eye(5))
    assert synchronize(gathered).shape == (6, 2)


@scenario
def timelines_start_and_stop_while_the_job_runs() -> None:
    with tempfile.TemporaryDirectory() as folder:
        hvd.stop_timeline()
        for step in (1, 2):
            path = Path(folder, f"{step}.json")
            hvd.start_timeline(str(path), mark_cycles=True)
            hvd.start_timeline(str(path), mark_cycles=True)
            hvd.allreduce(torch.ones(3), name=f"step {step}")
            if step == 2:
                hvd.start_timeline(str(Path(folder, "3.json")))
            hvd.stop_timeline()
            if hvd.rank() == 0:
                events = json.loads(path.read_text())["traceEvents"]
                names = {event["name"] for event in events} | {event.get("args", {}).get("tensor") for event in events}
                assert {f"allreduce.step {step}", "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START"} <= names, names
                assert f"allreduce.step {3 - step}" not in names
