"""What DistributedDataParallel promises, on 3 ranks with a server: the scenarios of torch_*.py in tests/jobs.

On the CPU, with a simulated device in the place of the CPU, and where all ranks are a node that sums by gloo.
"""

import functools
from typing import Any

import pytest
import torch.distributed as dist
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
from shoal.torch import DistributedDataParallel

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


def run_all(where: str) -> dict[str, str]:
    if where == "simulated device":
        SimulatedDevice(eager=True).takes()
    elif where == "one node":
        dist.init_process_group("gloo")
        plain = DistributedDataParallel.__init__

        @functools.wraps(plain)
        def of_one_node(self: DistributedDataParallel, *arguments: Any, **named: Any) -> None:
            if named.keys().isdisjoint({"process_group", "device_mesh"}):
                named.setdefault("intra", dist.group.WORLD)
            plain(self, *arguments, **named)

        DistributedDataParallel.__init__ = of_one_node
    return torch_scenarios.run_each(SCENARIOS)


WHERE = ["cpu", *(pytest.param(where, marks=pytest.mark.slow) for where in ("simulated device", "one node"))]


@pytest.fixture(scope="module", params=WHERE)
def results(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    """One job for all scenarios: by rank, the traceback of each that failed."""
    return run_ranks(run_all, RANKS, request.param, servers=1, environment={"SHOAL_TIMEOUT": "20"}, timeout=300)


# With a process group of PyTorch's, and one operation more a pass. In one node nothing travels, and nothing is rounded.
NOT_OF_NODES = {
    *torch_narrow.SCENARIOS,
    "statistics_that_would_not_be_those_of_all_ranks_are_refused",
    "logging_data_tells_bytes_operations_and_times",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(results: list[dict[str, str]], name: str, request: pytest.FixtureRequest) -> None:
    if name in NOT_OF_NODES and "one node" in request.node.name:
        pytest.skip("of the plain way")
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
