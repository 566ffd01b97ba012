"""A PyTorch that is too old for the backend: it says so, and what to take. Run by run.py on such versions."""

import pytest
import torch
import torch.distributed as dist

import shoal
import shoal.torch  # PyTorch 2.4 does not ask packages for backends


def test_the_backend_says_which_version_it_needs() -> None:
    store = dist.HashStore()
    with pytest.raises(
        shoal.ConfigurationError, match=r"needs PyTorch 2\.6 or later, and this is " + torch.__version__[:3]
    ):
        dist.init_process_group("shoal", store=store, rank=0, world_size=1)
