"""Tensors of a CUDA device: what two ranks do, which may have the same one, and the order in its streams.

Where there is none, these tests are not run; test_staging.py does the same on a device that is simulated. With
CUDA_TESTS_REHEARSAL=1 those that can be are run with tensors on the CPU, which shows that they are well written, no more.
"""

import os
import time
from collections.abc import Callable

import numpy as np
import pytest
import staging_scenarios
import torch

from shoal import _native
from shoal.testing import run_ranks
from shoal.torch.accelerators import Cuda
from shoal.torch.pinned_memory import PinnedMemory, pin
from shoal.torch.staging import Transfer

IS_HERE = torch.cuda.is_available()
REHEARSAL = not IS_HERE and os.environ.get("CUDA_TESTS_REHEARSAL") == "1"
DEVICE = "cpu" if REHEARSAL else "cuda"

pytestmark = pytest.mark.skipif(not IS_HERE and not REHEARSAL, reason="NOT RUN: no CUDA device here")
has_streams = pytest.mark.skipif(not IS_HERE, reason="NOT RUN: no CUDA device here, and the CPU has no streams")

# Cycles of the device, some tens of milliseconds.
LONG = 50_000_000


def a_transfer() -> Transfer:
    device = Cuda(torch.device("cuda", 0))
    return Transfer(device, _native.Ways(device.native), PinnedMemory(), waits=True)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


@has_streams
def test_what_goes_out_is_what_the_stream_has_made_before_the_call() -> None:
    tensor = torch.zeros(2**20, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor.record_stream(torch.cuda.current_stream())
        torch.cuda._sleep(LONG)
        tensor.fill_(7)
        transfer = a_transfer()
        host = transfer.mirror(tensor, read=True)
        gate = transfer.depart()
        assert not gate.is_open(), "the device was too fast for this test"
        wait_until(gate.is_open)
    assert host.is_pinned()
    assert bool((host == 7).all())


@has_streams
def test_what_comes_back_is_there_for_who_follows() -> None:
    tensor = torch.zeros(2**20, device="cuda")
    torch.cuda.synchronize()
    transfer = a_transfer()
    host = transfer.mirror(tensor, read=False)
    wait_until(transfer.depart().is_open)
    with transfer.way_back():
        torch.cuda._sleep(LONG)
    with transfer.returning():
        transfer.take_back(tensor, host.fill_(5))
    before = tensor.sum()
    transfer.follow()
    assert (float(before), float(tensor.sum())) == (0.0, 5.0 * 2**20), "the first did not follow, the second did"


@has_streams
def test_memory_that_is_there_already_is_pinned_as_long_as_it_lives() -> None:
    memory = np.zeros(2**20, np.uint8)
    pin(Cuda(torch.device("cuda", 0)), memory)
    assert torch.from_numpy(memory).is_pinned()
    address = memory.ctypes.data
    del memory
    again = np.zeros(2**20, np.uint8)
    assert again.ctypes.data != address or not torch.from_numpy(again).is_pinned()
    assert float(torch.ones(1, device="cuda")) == 1.0, "no error is left in CUDA"


def test_every_collective_gives_what_it_gives_on_the_cpu() -> None:
    assert run_ranks(staging_scenarios.every_collective, 2, DEVICE, servers=1) == [[]] * 2


@has_streams
def test_results_are_awaited_in_streams() -> None:
    for found in run_ranks(staging_scenarios.in_cuda_streams, 2):
        assert found == {"wait": 3.0, "future": 3.0, "not asynchronous": 3.0, "another stream": 3.0}


@has_streams
def test_what_is_for_the_cpu_is_refused() -> None:
    for found in run_ranks(staging_scenarios.refused_on_cuda, 2):
        assert len(found) == 2
        for text in found:
            assert text.startswith("TypeError"), text
            assert "for tensors on the CPU only" in text


@has_streams
def test_a_rank_that_is_lost_while_a_tensor_is_on_its_way() -> None:
    assert run_ranks(staging_scenarios.lost_on_cuda, 2)[0].startswith("PeerLost")


@pytest.mark.parametrize("backend", ["shoal", "cuda:shoal", "gloo"])
def test_distributed_data_parallel_trains_as_on_the_cpu(backend: str) -> None:
    for on_device, on_cpu in run_ranks(staging_scenarios.trained_on, 2, DEVICE, backend):
        torch.testing.assert_close(torch.tensor(on_device), torch.tensor(on_cpu), rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not IS_HERE, reason="NOT RUN: no CUDA device here, and PyTorch refuses SyncBatchNorm on the CPU")
def test_sync_batch_norm_has_the_statistics_of_all_ranks() -> None:
    for found, expected in run_ranks(staging_scenarios.normalized_together, 2, DEVICE):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("where", [{"nodes": 1}, {"servers": 1}], ids=["one machine", "a server"])
def test_our_wrapper_trains_as_on_the_cpu(where: dict[str, int]) -> None:
    for on_device, on_cpu in run_ranks(staging_scenarios.wrapped_on, 2, DEVICE, **where):
        torch.testing.assert_close(torch.tensor(on_device), torch.tensor(on_cpu), rtol=1e-3, atol=1e-4)
