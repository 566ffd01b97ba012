"""Tensors of an accelerator: what they hold when, and in which order operations on them are submitted.

Here on a device that is simulated; test_cuda.py does the same on a real one.
"""

import threading
import time

import c10d_scenarios
import pytest
import staging_scenarios
import torch
from simulated_device import SimulatedDevice

from shoal.testing import run_ranks
from shoal.torch import accelerators
from shoal.torch.arena import GradientArenas
from shoal.torch.staging import Room, Transfer, Ways

PAUSE = 0.02


def transfer_on(device: SimulatedDevice, room: Room | None = None, waits: bool = True) -> Transfer:
    return Transfer(device, Ways(device.stream(), device.stream()), room or Room(), waits)


def test_what_goes_out_is_what_the_stream_has_made_before_the_call() -> None:
    device, tensor = SimulatedDevice(PAUSE), torch.zeros(3)
    device.launch(lambda: (time.sleep(5 * PAUSE), tensor.fill_(7)))
    transfer = transfer_on(device)
    host = transfer.mirror(tensor, read=True)
    transfer.sent()
    assert not bool((host == 7).any())
    transfer.wait_until_out()
    assert host.tolist() == [7.0] * 3


def test_what_comes_back_is_there_for_who_follows() -> None:
    device, tensor, seen = SimulatedDevice(PAUSE), torch.zeros(3), []
    transfer = transfer_on(device)
    host = transfer.mirror(tensor, read=False)
    with transfer.returning():
        transfer.take_back(tensor, host.fill_(5))
    device.launch(lambda: seen.append(tensor.tolist()))
    transfer.follow()
    device.launch(lambda: seen.append(tensor.tolist()))
    device.synchronize()
    assert seen == [[0.0] * 3, [5.0] * 3], "the first did not follow, the second did"


def test_a_mirror_that_is_not_read_costs_no_copy() -> None:
    device = SimulatedDevice()
    transfer_on(device).mirror(torch.zeros(3), read=False)
    assert device.copies == 0


def test_pinned_memory_is_limited_and_given_back() -> None:
    device, room, order = SimulatedDevice(), Room(limit=100), []
    first, second, alone = (transfer_on(device, room) for _ in range(3))
    in_a_callback = transfer_on(device, room, waits=False)
    first.memory(60)
    first.memory(60)  # as much as it needs, while no other has any

    def take_second() -> None:
        second.memory(60)
        order.append("second")
        second.memory(60)

    waiting = threading.Thread(target=take_second)
    waiting.start()
    in_a_callback.memory(200)
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
    transfer_on(device, room).memory(60)  # of an operation that comes to nothing
    alone.memory(1000)


def test_every_collective_gives_what_it_gives_on_the_cpu() -> None:
    assert run_ranks(staging_scenarios.every_collective, 3, None, servers=1) == [[]] * 3


def test_results_are_awaited_in_streams_and_nothing_else_waits() -> None:
    for rank, found in enumerate(run_ranks(staging_scenarios.in_the_streams, 2)):
        for how in ("wait", "future"):
            assert found[how] == [[3.0] * 4]
            assert found[f"on the CPU, {how}"] == [1.0] * 2
            assert found[f"seconds of the call, {how}"] < 0.05
        assert found["not waited for"] == [6.0] * 4
        if rank == 0:
            assert not found["done when the program's stream is idle, wait"], "rank 1 had nothing to give yet"


def test_what_is_wrong_on_one_rank_is_raised_on_all_and_what_follows_goes_on() -> None:
    for rank, found in enumerate(run_ranks(staging_scenarios.wrong_arguments, 2)):
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
    there, here = run_ranks(staging_scenarios.thread_that_cannot_start, 2, timeout=30)
    assert "start new thread" in there[0]
    assert here[0] == "RuntimeError: can't start new thread"
    assert there[1:] == here[1:] == ["no error", "[2.0, 2.0]"]


def test_a_rank_that_is_lost_while_a_tensor_is_on_its_way() -> None:
    assert run_ranks(staging_scenarios.lost_while_it_is_staged, 2)[0].startswith("PeerLost")


def test_who_waits_for_the_device_to_call_and_who_is_called_when_it_fails_may_call() -> None:
    assert run_ranks(staging_scenarios.callers_on_a_slow_device, 1) == [{"submits": True, "callback": True}]


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


def test_each_device_has_arenas_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice()
    named = [(f"p{index}", torch.nn.Parameter(torch.ones(40))) for index in range(4)]
    there = {id(named[index][1]) for index in (1, 3)}
    monkeypatch.setattr(accelerators, "of", lambda tensors: device if id(tensors[0]) in there else None)
    arenas = GradientArenas(named, [3, 2, 1, 0], 200)
    assert len({buffer.label for buffer in arenas.buffers}) == len(arenas.buffers) == 4
    for buffer in arenas.buffers:
        assert {arenas.device(index) for index in buffer.gradients} == ({None} if buffer.host is None else {device})
        if buffer.host is not None:
            assert (buffer.host.shape, buffer.host.dtype) == (buffer.memory.shape, buffer.memory.dtype)
            assert buffer.host.data_ptr() != buffer.memory.data_ptr()


def test_a_buffer_waits_for_all_streams_that_its_gradients_are_made_in() -> None:
    assert run_ranks(staging_scenarios.made_in_two_streams, 2) == [1.0] * 2


def test_a_rank_that_is_lost_while_our_wrappers_gradients_are_on_their_way() -> None:
    assert run_ranks(staging_scenarios.lost_while_gradients_are_staged, 2)[0].startswith("PeerLost")


def test_groups_are_for_the_cpu_and_cuda_devices() -> None:
    assert run_ranks(staging_scenarios.asked_for_by_device, 2) == [(2.0, ["cpu", "cuda"])] * 2
