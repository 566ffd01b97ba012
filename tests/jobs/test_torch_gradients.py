"""What DistributedDataParallel promises, on 3 ranks with a server: torch_scenarios.py and torch_layers.py in tests/jobs."""

import pytest
import torch_layers
import torch_scenarios

from shoal.testing import run_ranks

RANKS = 3
SCENARIOS = {**torch_scenarios.SCENARIOS, **torch_layers.SCENARIOS}


def run_all() -> dict[str, str]:
    return torch_scenarios.run_each(SCENARIOS)


@pytest.fixture(scope="module")
def results() -> list[dict[str, str]]:
    """One job for all scenarios: by rank, the traceback of each that failed."""
    return run_ranks(run_all, RANKS, servers=1, environment={"SHOAL_TIMEOUT": "20"}, timeout=300)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(results: list[dict[str, str]], name: str) -> None:
    failures = [f"rank {rank}:\n{result[name]}" for rank, result in enumerate(results) if result[name]]
    assert not failures, "\n".join(failures)
