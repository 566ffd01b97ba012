"""Tensors of an accelerator: what they hold when, and in which order operations on them are submitted.

Here on a device that is simulated; test_cuda.py does the same on a real one.
"""

import threading
import time
from collections.abc import Callable
from itertools import pairwise

import c10d_scenarios
import pytest
import staging_scenarios
import torch
from simulated_device import SimulatedDevice, stand_in

from shoal import _native
from shoal.gradients.layout import Extent
from shoal.testing import Cluster, run_ranks
from shoal.torch import accelerators, pinned_memory
from shoal.torch.arena import GradientArenas
from shoal.torch.pinned_memory import PinnedMemory
from shoal.torch.staging import Transfer

PAUSE = 0.02
HOST, STREAM = {"SHOAL_CUDA_WAIT": "host"}, {"SHOAL_CUDA_WAIT": "stream"}


def transfer_on(device: SimulatedDevice, memory: PinnedMemory | None = None, waits: bool = True) -> Transfer:
    return Transfer(device, _native.Ways(device.native), memory or PinnedMemory(), waits)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


def test_what_goes_out_is_what_the_stream_has_made_before_the_call() -> None:
    device, tensor = SimulatedDevice(PAUSE), torch.zeros(3)
    device.launch(lambda: (time.sleep(5 * PAUSE), tensor.fill_(7)))
    transfer = transfer_on(device)
    host = transfer.mirror(tensor, read=True)
    gate = transfer.depart()
    assert not gate.is_open()
    wait_until(gate.is_open)
    assert host.tolist() == [7.0] * 3


def test_what_comes_back_is_there_for_who_follows() -> None:
    device, tensor, seen = SimulatedDevice(PAUSE), torch.zeros(3), []
    transfer = transfer_on(device)
    host = transfer.mirror(tensor, read=False)
    wait_until(transfer.depart().is_open)
    with transfer.returning():
        transfer.take_back(tensor, host.fill_(5))
    transfer.follow()
    device.launch(lambda: seen.append(tensor.tolist()))
    device.synchronize()
    assert seen == [[5.0] * 3]


def test_what_lies_with_gaps_goes_out_and_comes_back() -> None:
    device, tensor = SimulatedDevice(PAUSE), torch.arange(6.0).view(2, 3).t()
    transfer = transfer_on(device)
    host = transfer.mirror(tensor, read=True)
    wait_until(transfer.depart().is_open)
    assert host.tolist() == [[0, 3], [1, 4], [2, 5]]
    with transfer.returning():
        transfer.take_back(tensor, host.mul_(2))
    transfer.follow()
    device.synchronize()
    assert tensor.tolist() == [[0, 6], [2, 8], [4, 10]]


def test_a_mirror_that_is_not_read_costs_no_copy() -> None:
    device = SimulatedDevice()
    transfer = transfer_on(device)
    transfer.mirror(torch.zeros(3), read=False)
    wait_until(transfer.depart().is_open)
    assert device.copies == 0


def test_pinned_memory_is_limited_and_given_back() -> None:
    device, memory, order = SimulatedDevice(0), PinnedMemory(limit=10_000), []
    first, second, alone = (transfer_on(device, memory) for _ in range(3))
    in_a_callback = transfer_on(device, memory, waits=False)
    first.memory(6000)
    first.memory(6000)  # as much as it needs, while no other has any

    def take_second() -> None:
        second.memory(6000)
        order.append("second")
        second.memory(6000)

    waiting = threading.Thread(target=take_second)
    waiting.start()
    in_a_callback.memory(20_000)
    time.sleep(5 * PAUSE)
    order.append("first")
    first.close()
    first.close()
    time.sleep(5 * PAUSE)
    assert order == ["first"], "the callback's operation has more than the limit yet"
    in_a_callback.close()
    waiting.join(10)
    assert order == ["first", "second"]
    second.close()
    transfer_on(device, memory).memory(6000)  # of an operation that comes to nothing
    alone.memory(100_000)


def test_operations_that_take_no_memory_here_leave_nothing_behind() -> None:
    device, memory, tensor = SimulatedDevice(0), PinnedMemory(), torch.ones(10)
    host = pinned_memory.allocate(device, tensor.nbytes).view(tensor.dtype)
    for _ in range(50):
        transfer = transfer_on(device, memory)
        transfer.bring(host, tensor)
        gate = transfer.depart()
        wait_until(gate.is_open)
        gate.leave()
        wait_until(transfer._passage.is_over)
        transfer.close()
    assert len(memory._returned) <= 1


def test_pinned_memory_is_used_again_once_its_copies_are_done() -> None:
    device, memory, tensor = SimulatedDevice(5 * PAUSE), PinnedMemory(), torch.ones(1000)
    first, second, third = (transfer_on(device, memory) for _ in range(3))
    used = first.mirror(tensor, read=True)
    gate = first.depart()
    first.close()
    assert second.memory(4000).data_ptr() != used.data_ptr(), "the copy is on its way"
    wait_until(gate.is_open)
    assert bool((used == 1).all())
    assert not first._passage.is_over(), "what ends the operation may write there"
    gate.leave()
    wait_until(first._passage.is_over)
    before = device.library.registered_bytes()
    assert third.memory(3000).data_ptr() == used.data_ptr()
    assert device.library.registered_bytes() == before


def test_pinned_memory_that_nobody_uses_is_let_go_of() -> None:
    device, memory = SimulatedDevice(0), PinnedMemory(idle=10 * PAUSE)
    before = device.library.registered_bytes()
    large, small = transfer_on(device, memory), transfer_on(device, memory)
    large.memory(1_000_000)
    large.depart().leave()
    wait_until(large._passage.is_over)
    large.close()
    kept = device.library.registered_bytes() - before
    assert 1_000_000 <= kept <= 1_000_000 * 17 // 16
    time.sleep(20 * PAUSE)
    small.memory(100)
    assert device.library.registered_bytes() - before == 4096
    small.depart().leave()
    small.close()
    memory.let_go()
    assert device.library.registered_bytes() == before


@pytest.mark.parametrize("way", [HOST, STREAM], ids=["host", "stream"])
def test_every_collective_gives_what_it_gives_on_the_cpu(way: dict[str, str]) -> None:
    assert run_ranks(staging_scenarios.every_collective, 3, None, servers=1, environment=way) == [[]] * 3


def test_the_host_goes_on_where_streams_wait() -> None:
    for rank, found in enumerate(run_ranks(staging_scenarios.in_streams_alone, 2)):
        assert found["seconds"] < staging_scenarios.LATE / 2, found
        assert found["futures"]
        fourth = 30.0 if rank == 0 else 20.0
        assert found["sums"] == [[600.0] * 4, [30.0] * 4, [20.0] * 4, [fourth] * 4]


@pytest.mark.parametrize("then", ["call", "destroy", "end"])
def test_a_failure_that_a_stream_has_waited_for_is_raised_by_what_comes_next(then: str) -> None:
    with Cluster(2) as cluster:
        here, _ = cluster.start(staging_scenarios.lost_in_a_stream, then).wait(60)
    said = here.stdout + here.stderr
    assert "'no error', '[nan, nan]'" in said, said
    assert "PeerLost" in said
    assert "go on from a checkpoint" in said
    assert here.exit_code == (1 if then == "end" else 0), said


def test_a_program_may_end_while_its_tensors_are_on_their_way() -> None:
    with Cluster(2) as cluster:
        outcomes = cluster.start(staging_scenarios.open_to_the_end).wait(30)
    assert [(outcome.exit_code, outcome.stderr) for outcome in outcomes] == [(0, "")] * 2


def test_our_wrapper_leaves_waiting_to_streams() -> None:
    for rank, found in enumerate(run_ranks(staging_scenarios.wrapped_in_streams, 2, environment=STREAM)):
        assert found["mean"] == [1.5]
        # Where ranks agree about their layout they wait for each other: rank 0 for the late one.
        assert rank == 0 or found["seconds"] < staging_scenarios.LATE / 2


def test_a_work_says_nothing_of_others_and_takes_no_failure_from_them() -> None:
    for success, exception, first, second in run_ranks(staging_scenarios.looked_at_by_others, 2):
        assert (success, exception, second) == (True, None, "no error")
        assert first.startswith("ShoalError: of another operation")


def test_our_wrapper_leaves_failures_to_the_next_pass_where_streams_wait() -> None:
    with Cluster(2, environment=STREAM) as cluster:
        here, _ = cluster.start(staging_scenarios.lost_in_the_wrapper).wait(60)
    assert "['no error', " in here.stdout, here.describe()
    assert "PeerLost" in here.stdout
    assert here.exit_code == 0, here.describe()


def test_results_are_awaited_in_streams_and_nothing_else_waits() -> None:
    for rank, found in enumerate(run_ranks(staging_scenarios.in_the_streams, 2, environment=HOST)):
        for how in ("wait", "future"):
            assert found[how] == [[3.0] * 4]
            assert found[f"on the CPU, {how}"] == [1.0] * 2
            assert found[f"seconds of the call, {how}"] < 0.05
        assert found["not waited for"] == [6.0] * 4
        if rank == 0:
            assert not found["done when the program's stream is idle, wait"], "rank 1 had nothing to give yet"


def test_what_is_wrong_on_one_rank_is_raised_on_all_and_what_follows_goes_on() -> None:
    for rank, found in enumerate(run_ranks(staging_scenarios.wrong_arguments, 2, environment=HOST)):
        unknown, shape, output, right, *refused = found
        assert unknown.startswith(f"TypeError: all_reduce on rank {rank} (")
        assert "the tensor is on meta" in unknown
        assert shape.startswith("Mismatch")
        assert "rank 1" in shape
        assert output.startswith("ValueError" if rank == 1 else "ShoalError"), output
        assert "the output 3" in output
        assert right == "no error"
        for text in refused:
            assert text.startswith("TypeError"), text
            assert "for tensors on the CPU only" in text


def test_an_operation_for_which_no_thread_can_start_fails_on_all_ranks_and_what_follows_goes_on() -> None:
    there, here = run_ranks(staging_scenarios.thread_that_cannot_start, 2, environment=HOST, timeout=30)
    assert "start new thread" in there[0]
    assert here[0] == "RuntimeError: can't start new thread"
    assert there[1:] == here[1:] == ["no error", "[2.0, 2.0]"]


def test_a_rank_that_is_lost_while_a_tensor_is_on_its_way() -> None:
    assert run_ranks(staging_scenarios.lost_while_it_is_staged, 2, environment=HOST)[0].startswith("PeerLost")


def test_a_device_that_fails_fails_the_operation_on_all_ranks_and_what_follows_goes_on() -> None:
    there, here = run_ranks(staging_scenarios.device_that_fails, 2, environment=HOST, timeout=30)
    for found in (there, here):
        assert "cuMemcpyDtoHAsync on CUDA device 0 has failed" in found[0]
        assert found[1:] == ["no error", "[2.0, 2.0]"]


def test_an_operation_that_is_captured_for_a_graph_says_so_on_all_ranks() -> None:
    for found in run_ranks(staging_scenarios.captured_for_a_graph, 2, environment=HOST, timeout=30):
        assert "cannot be captured in a CUDA graph" in found[0]
        assert found[1:] == ["no error", "[2.0, 2.0]"]


def test_what_is_only_marked_as_conjugated_or_negated_is_so_on_its_way() -> None:
    for on_cpu, on_device in run_ranks(staging_scenarios.marked_only, 2):
        assert on_cpu == on_device


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["none", "fp16_compress_hook"])
def test_distributed_data_parallel_trains_as_on_the_cpu(hook: str) -> None:
    on_cpu = run_ranks(c10d_scenarios.trained_with, 2, hook, 5)
    assert run_ranks(staging_scenarios.trained_on_simulated_device, 2, hook, 5) == on_cpu


@pytest.mark.slow
def test_callbacks_that_wait() -> None:
    on_cpu = run_ranks(c10d_scenarios.trained_with, 2, "PowerSGD", 40)
    assert run_ranks(staging_scenarios.trained_on_simulated_device, 2, "PowerSGD", 40) == on_cpu


def test_the_communication_hook_trains_as_on_the_cpu() -> None:
    for on_cpu, on_device in run_ranks(staging_scenarios.hooked_on_both, 2):
        assert on_cpu == on_device


@pytest.mark.parametrize(
    "where",
    [pytest.param({"nodes": 1}, id="one machine"), pytest.param({"servers": 1}, id="a server", marks=pytest.mark.slow)],
)
def test_our_wrapper_trains_as_on_the_cpu(where: dict[str, int]) -> None:
    for on_cpu, on_device, on_both, copies in run_ranks(staging_scenarios.wrapped_everywhere, 2, **where):
        assert on_cpu == on_device
        assert on_cpu == on_both
        assert 0 < copies[1] < copies[0], "fewer parameters are on the device where others are on the CPU"


@pytest.mark.parametrize("way", [HOST, STREAM], ids=["host", "stream"])
def test_what_travels_in_fewer_bits_is_rounded_and_widened_in_the_streams(way: dict[str, str]) -> None:
    for found in run_ranks(staging_scenarios.narrowed_in_streams, 2, environment=way):
        assert found["device"] == found["cpu"]
        assert all(torch.tensor(found["cpu"]).bfloat16().float() == torch.tensor(found["cpu"]))


def test_each_device_has_arenas_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice()
    named = [(f"p{index}", torch.nn.Parameter(torch.ones(40))) for index in range(4)]
    there = {id(named[index][1]) for index in (1, 3)}
    monkeypatch.setattr(accelerators, "of", lambda tensors: device if id(tensors[0]) in there else None)
    arenas = GradientArenas(named, [3, 2, 1, 0], 200)
    assert len({buffer.label for buffer in arenas.buffers}) == len(arenas.buffers) == 4
    for buffer in arenas.buffers:
        assert {arenas.device(index) for index in buffer.gradients} == ({None} if buffer.mirror is None else {device})
        if buffer.mirror is not None:
            assert (buffer.mirror.shape, buffer.mirror.dtype) == (buffer.memory.shape, buffer.memory.dtype)
            assert buffer.mirror.data_ptr() != buffer.memory.data_ptr()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_a_buffer_that_is_averaged_in_slices_the_own_one_is_mirrored(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, before = SimulatedDevice(), stand_in().registered_bytes()
    monkeypatch.setattr(accelerators, "of", lambda _: device)

    def own(count: int) -> Extent:
        return Extent(place * (count // 3), count if place == 2 else (place + 1) * (count // 3))

    named = [(f"p{index}", torch.nn.Parameter(torch.ones(1000))) for index in range(4)]
    arenas = GradientArenas(named, [3, 2, 1, 0], 5000, own=own)
    assert len(arenas.buffers) == 4
    for buffer in arenas.buffers:
        assert buffer.mirror is not None
        assert buffer.mirror.shape == buffer.own.shape
        begin, end = own(buffer.memory.numel())
        assert buffer.own.data_ptr() == buffer.memory[begin:end].data_ptr()
    places = sorted(
        (buffer.mirror.data_ptr(), buffer.mirror.nbytes) for buffer in arenas.buffers if buffer.mirror is not None
    )
    assert all(begin + size <= after for (begin, size), (after, _) in pairwise(places))
    own_bytes = sum(buffer.own.nbytes for buffer in arenas.buffers)
    assert own_bytes <= stand_in().registered_bytes() - before <= own_bytes + 64 * len(arenas.buffers)


def test_a_buffer_waits_for_all_streams_that_its_gradients_are_made_in() -> None:
    assert run_ranks(staging_scenarios.made_in_two_streams, 2) == [1.0] * 2


def test_a_rank_that_is_lost_while_our_wrappers_gradients_are_on_their_way() -> None:
    assert run_ranks(staging_scenarios.lost_while_gradients_are_staged, 2)[0].startswith("PeerLost")


def test_a_device_that_another_process_has_alone_is_named_and_may_be_free_later() -> None:
    library = stand_in()
    library.fail("cuDevicePrimaryCtxRetain", 46)  # CUDA_ERROR_DEVICE_UNAVAILABLE, in compute mode "exclusive process"
    with pytest.raises(RuntimeError, match=r"cuDevicePrimaryCtxRetain on CUDA device 3 has failed: .*46"):
        _native.CudaDevice(library.path, 3)
    library.fail("cuDevicePrimaryCtxRetain", 0)
    assert _native.CudaDevice(library.path, 3).streams_can_wait


def test_groups_are_for_the_cpu_and_cuda_devices() -> None:
    assert run_ranks(staging_scenarios.asked_for_by_device, 2) == [(2.0, ["cpu", "cuda"])] * 2
