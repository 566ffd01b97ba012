"""Horovod's door for PyTorch with real ranks: the scenarios of horovod_*.py in tests/jobs.

What Horovod's own tests check, in short; those themselves run by tests/conformance/horovod/run.py, from a checkout.
"""

import horovod_adasum
import horovod_operations  # noqa: F401
import horovod_training  # noqa: F401
import pytest
from horovod_scenarios import SCENARIOS, run_each
from simulated_device import SimulatedDevice

from shoal.testing import run_ranks

RANKS = 3

# Nodes, servers.
PLACES = {"two nodes and a server": (2, 1), "one machine": (1, 0), "three nodes": (3, 0), "simulated device": (2, 0)}
QUICK, *OTHERS = PLACES


def run_all(place: str) -> dict[str, str]:
    """Of this module, which has all scenarios."""
    if place == "simulated device":
        SimulatedDevice(eager=True).takes()
    return run_each()


@pytest.fixture(scope="module", params=[QUICK, *(pytest.param(place, marks=pytest.mark.slow) for place in OTHERS)])
def results(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    """One job for all scenarios: by rank, the traceback of each that failed."""
    nodes, servers = PLACES[request.param]
    return run_ranks(
        run_all, RANKS, request.param, nodes=nodes, servers=servers, environment={"SHOAL_TIMEOUT": "20"}, timeout=120
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(results: list[dict[str, str]], name: str) -> None:
    failures = [f"rank {rank}:\n{result[name]}" for rank, result in enumerate(results) if result[name]]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(("ranks", "nodes"), [(4, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_adasum(ranks: int, nodes: int) -> None:
    run_ranks(horovod_adasum.all_of_it, ranks, nodes=nodes, environment={"SHOAL_TIMEOUT": "20"}, timeout=120)
