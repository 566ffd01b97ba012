"""Tensors of a CUDA device, where there is one: two ranks, which may have the same device, do what they do on the CPU."""

import pytest
import staging_scenarios
import torch

from shoal.testing import run_ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_every_collective_gives_what_it_gives_on_the_cpu() -> None:
    assert run_ranks(staging_scenarios.every_collective, 2, "cuda", servers=1) == [[]] * 2


@pytest.mark.parametrize("backend", ["shoal", "cuda:shoal", "gloo"])
def test_distributed_data_parallel_trains_as_on_the_cpu(backend: str) -> None:
    for on_device, on_cpu in run_ranks(staging_scenarios.trained_on, 2, "cuda", backend):
        torch.testing.assert_close(torch.tensor(on_device), torch.tensor(on_cpu), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("where", [{"nodes": 1}, {"servers": 1}], ids=["one machine", "a server"])
def test_our_wrapper_trains_as_on_the_cpu(where: dict[str, int]) -> None:
    for on_device, on_cpu in run_ranks(staging_scenarios.wrapped_on, 2, "cuda", **where):
        torch.testing.assert_close(torch.tensor(on_device), torch.tensor(on_cpu), rtol=1e-3, atol=1e-4)
