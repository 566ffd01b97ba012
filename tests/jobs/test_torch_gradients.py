"""What DistributedDataParallel promises, on 3 ranks with a server: the scenarios of torch_*.py in tests/jobs.

On the CPU, and with a simulated device in the place of the CPU.
"""

import pytest
import torch_interrupted
import torch_layers
import torch_narrow
import torch_passes
import torch_scenarios
import torch_swapped
import torch_tools
import torch_uneven
from simulated_device import SimulatedDevice

import shoal
from shoal.testing import Cluster, run_ranks

RANKS = 3
SUBJECTS = (
    torch_scenarios,
    torch_layers,
    torch_passes,
    torch_uneven,
    torch_swapped,
    torch_interrupted,
    torch_narrow,
    torch_tools,
)
SCENARIOS = {name: function for subject in SUBJECTS for name, function in subject.SCENARIOS.items()}


def run_all(device: str) -> dict[str, str]:
    if device != "cpu":
        SimulatedDevice(eager=True).takes()
    return torch_scenarios.run_each(SCENARIOS)


@pytest.fixture(scope="module", params=["cpu", pytest.param("simulated device", marks=pytest.mark.slow)])
def results(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    """One job for all scenarios: by rank, the traceback of each that failed."""
    return run_ranks(run_all, RANKS, request.param, servers=1, environment={"SHOAL_TIMEOUT": "20"}, timeout=300)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(results: list[dict[str, str]], name: str) -> None:
    failures = [f"rank {rank}:\n{result[name]}" for rank, result in enumerate(results) if result[name]]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(("nodes", "servers"), [(1, 0), (3, 0), (3, 3)])
def test_rounded_gradients_have_the_same_bits_wherever_they_are_averaged(nodes: int, servers: int) -> None:
    for found in run_ranks(torch_scenarios.run_each, RANKS, torch_narrow.SCENARIOS, nodes=nodes, servers=servers):
        assert not any(found.values()), "\n".join(found.values())


@pytest.mark.parametrize("moment", [pytest.param("before a step", marks=pytest.mark.slow), "in the backward pass"])
def test_a_killed_rank_is_named_to_those_that_have_run_out_too(moment: str) -> None:
    with Cluster(RANKS) as cluster:
        outcomes = cluster.start(torch_uneven.killed, moment).wait()
    for outcome in (outcomes[0], outcomes[2]):
        assert type(outcome.exception) is shoal.PeerLost, outcome.describe()
        assert outcome.exception.rank == 1


def test_groups_of_torch_distributed_say_who_averages() -> None:
    results = run_ranks(torch_swapped.groups_of_torch_distributed, RANKS)
    assert results == [([5.0], [6.0]), ([5.0], []), ([5.0], [6.0])]
