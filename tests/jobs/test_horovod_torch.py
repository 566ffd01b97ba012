"""Horovod's door for PyTorch with real ranks: the scenarios of horovod_*.py in tests/jobs.

What Horovod's own tests check, in short; those themselves run by tests/conformance/horovod/run.py, from a checkout.
"""

import json
import time
from pathlib import Path

import horovod_adasum
import horovod_operations  # noqa: F401
import horovod_training  # noqa: F401
import pytest
import torch
from horovod_scenarios import SCENARIOS, run_each
from simulated_device import SimulatedDevice

import shoal.horovod.torch as hvd
from shoal.testing import Cluster, run_ranks

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


def one_step() -> None:
    hvd.init()
    hvd.allreduce(torch.ones(3), name="one step")
    hvd.shutdown()


def test_the_timeline_that_rank_0_is_asked_for_has_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    with Cluster(2, nodes=1) as cluster:
        cluster.start(one_step, environment_of=lambda rank: {} if rank else {"HOROVOD_TIMELINE": str(path)}).results(60)
    document = json.loads(path.read_text())
    assert {event["pid"] for event in document["traceEvents"]} == {0, 1}
    assert "allreduce.one step" in path.read_text()
    assert document["metadata"]["start_time_since_epoch_in_micros"] > 1.6e15


def ask_for_it_again(path: str) -> None:
    hvd.init()
    hvd.start_timeline(path)  # which rank 0 writes already
    hvd.allreduce(torch.ones(3), name="one step")
    hvd.stop_timeline()
    hvd.shutdown()


def test_a_timeline_that_rank_0_writes_already_is_not_begun_again(tmp_path: Path) -> None:
    path = str(tmp_path / "timeline.json")
    with Cluster(2, nodes=1, environment={"SHOAL_TIMEOUT": "20"}) as cluster:
        environments = [{"HOROVOD_TIMELINE": path}, {}]
        cluster.start(ask_for_it_again, path, environment_of=lambda rank: environments[rank]).results(60)
    assert {event["pid"] for event in json.loads(Path(path).read_text())["traceEvents"]} == {0, 1}


def test_beside_a_timeline_of_the_whole_job_there_is_no_other(tmp_path: Path) -> None:
    whole, other = tmp_path / "whole", tmp_path / "other.json"
    with Cluster(2, nodes=1, environment={"SHOAL_TRACE": str(whole), "HOROVOD_TIMELINE": str(other)}) as cluster:
        outcomes = cluster.start(one_step).wait(60)
    assert [end.exit_code for end in outcomes] == [0, 0], [end.describe() for end in outcomes]
    assert not other.exists()
    assert len(list(whole.iterdir())) == 1
    assert [outcome.stderr.count("HOROVOD_TIMELINE is not used") for outcome in outcomes] == [1, 0]


def late_step() -> None:
    hvd.init()
    if hvd.rank() == 1:
        time.sleep(12)
    hvd.allreduce(torch.ones(3), name="late step")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "warns"), [("OTHER", "1", True), ("HOROVOD_STALL_CHECK_DISABLE", "1", False)]
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_core_s_warnings_of_stalls_are_those_that_the_variables_are_about(
    name: str, value: str, warns: bool, nodes: int
) -> None:
    with Cluster(2, nodes=nodes, environment={name: value}) as cluster:
        job = cluster.start(late_step)
        job.results(60)
        assert ("late step' has not moved on" in job.stderr(0)) == warns, job.stderr(0)


def sets_of_two_jobs() -> None:
    hvd.init()
    old = hvd.add_process_set([0, 1])
    hvd.shutdown()
    hvd.init(comm=range(3))
    new = hvd.add_process_set([1, 2])
    assert (old.process_set_id, new.size()) == (new.process_set_id, 2)
    with pytest.raises(ValueError, match="is not registered in this job"):
        hvd.allreduce(torch.ones(1), process_set=old)
    assert not hvd.remove_process_set(old)
    assert hvd.remove_process_set(new)
    with pytest.raises(ValueError, match=r"comm=\[0, 1\]: a job has all ranks that were started, here 3"):
        hvd.init(comm=[0, 1])


def test_the_process_sets_of_a_job_are_not_those_of_the_next() -> None:
    run_ranks(sets_of_two_jobs, 3, nodes=1, environment={"SHOAL_TIMEOUT": "20"})


def uneven_steps() -> int:
    """Rank r has r + 1 steps."""
    hvd.init()
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model.named_parameters())
    for step in range(hvd.rank() + 1):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        # Each rank that still calls has a gradient of ones; those that have joined give zeros.
        assert torch.allclose(model.weight.grad, torch.full((1, 2), (hvd.size() - step) / hvd.size()))
        assert hvd.allreduce(torch.ones(1), name="count", op=hvd.Sum).item() == hvd.size() - step
        assert hvd.allreduce(torch.tensor([7]), name="integers").item() == 7 * (hvd.size() - step) // hvd.size()
    if hvd.rank() == hvd.size() - 1:
        with pytest.raises(hvd.HorovodInternalError, match="joined"):
            hvd.allgather(torch.ones(1))
    last = hvd.join()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size(), "afterwards all take part again"
    return last


def test_ranks_that_have_no_more_data_join() -> None:
    assert run_ranks(uneven_steps, 3, nodes=2, servers=1, environment={"SHOAL_TIMEOUT": "20"}) == [2, 2, 2]
