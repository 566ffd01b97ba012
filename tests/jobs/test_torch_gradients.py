"""What DistributedDataParallel promises about gradients, on 3 ranks with a server: tests/jobs/torch_scenarios.py."""

import pytest
import torch_scenarios

from shoal.testing import run_ranks

RANKS = 3


@pytest.fixture(scope="module")
def results() -> list[dict[str, str]]:
    """One job for all scenarios: by rank, the traceback of each that failed."""
    environment = {"SHOAL_TIMEOUT": "20"}
    return run_ranks(torch_scenarios.run_all, RANKS, servers=1, environment=environment, timeout=300)


@pytest.mark.parametrize("name", torch_scenarios.SCENARIOS)
def test_scenario(results: list[dict[str, str]], name: str) -> None:
    failures = [f"rank {rank}:\n{result[name]}" for rank, result in enumerate(results) if result[name]]
    assert not failures, "\n".join(failures)
