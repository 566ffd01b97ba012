"""Ranks of the jobs here come from nurseries (shoal.testing.nursery): a test does not wait for imports.

Scripts, ``shoal run`` and torchrun start new processes as always.
"""

import os
from collections.abc import Iterator

import pytest

from shoal.testing import Nursery, ranks_from

_MODULES = ("numpy", "hypothesis", "pytest", "torch", "torch.distributed", "shoal", "shoal.torch")
# What every rank of a cluster has besides.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery(_MODULES, {**os.environ, **_ENVIRONMENT}) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def _ranks_from_a_nursery(nursery: Nursery) -> Iterator[None]:
    with ranks_from(nursery):
        yield
