"""``torch.distributed.init_process_group("shoal")``: what works with gloo works, and what goes wrong is raised everywhere."""

import subprocess
import sys
from pathlib import Path

import c10d_scenarios
import pytest
import torch.distributed as dist

from shoal.testing import Cluster, run_ranks

RANKS = 3
PROMPT = 2.0


def test_every_collective_gives_what_it_should() -> None:
    for rank, found in enumerate(run_ranks(c10d_scenarios.every_collective, RANKS, servers=1)):
        assert found == {
            "backend": "shoal",
            "ranks": 3,
            "sum": [6.0, 9.0],
            "mean of bfloat16": [2.0, 3.0],
            "product": [6.0, 15.0],
            "min": [1.0, 1.0],
            "max": [3.0, 5.0],
            "bitwise or": [3.0, 7.0],
            "not contiguous": [0.0, 18.0, 6.0, 24.0, 12.0, 30.0],
            "expanded": [3.0] * 6,
            "complex": [3 + 3j],
            "broadcast": [False],
            "wrong root": "the root has rank 3, but the group only 3 ranks",
            "all_gather": [0.0, 0.0, 1.0, 1.0, 2.0, 2.0],
            "all_gather_into_tensor": [0.0, 0.0, 1.0, 1.0, 2.0, 2.0],
            "reduce_scatter_tensor": [6.0 * rank, 6.0 * rank + 3],
            "reduce_scatter": [3.0 * rank] * 2,
            "reduce_scatter of different sizes": [3 * rank + 3j] * (rank + 1),
            "all_to_all_single": [rank, rank + 10, rank + 20],
            "all_to_all of different sizes": [0.0] * (rank + 1) + [1.0] * (rank + 1) + [2.0] * (rank + 1),
            "coalesced": [[3.0, 3.0], [3.0, 3.0, 3.0]],
            "coalesced parts, RedOpType.SUM": [3 * rank + 3] * 2,
            "coalesced parts, RedOpType.BOR": [rank | (rank + 1) | (rank + 2)] * 2,
            "objects": [{"rank": 0}, {"rank": 1}, {"rank": 2}],
            "received": [[0.0], [0.0], [2.0]][rank],
            "gathered": [0.0, 1.0, 2.0] if rank == 0 else None,
        }


def test_groups_of_some_ranks_and_a_second_start_in_the_same_process() -> None:
    assert run_ranks(c10d_scenarios.subgroups, 4) == [(2.0, 0, 4), (4.0, 0, 4)] * 2


@pytest.mark.parametrize(
    ("backends", "kinds"), [("cpu:gloo,cuda:shoal", ["Work"]), ("cpu:shoal,meta:fake", ["OperationWork"])]
)
def test_each_device_has_the_backend_that_was_asked_for(backends: str, kinds: list[str]) -> None:
    for rank, found in enumerate(run_ranks(c10d_scenarios.by_device, 2, backends, "cpu")):
        assert found == {
            "all_gather": [0.0, 1.0],
            "all_gather_into_tensor": [0.0, 1.0],
            "all_to_all_single": [float(rank), rank + 1.0],
            "all_reduce": [1.0, 3.0],
            "reduce_scatter_tensor": [[2.0], [6.0]][rank],
            "broadcast": [6.0],
            "gather": [6.0, 6.0] if rank == 0 else [],
            "gradient": [0.5, 0.5],
            "kinds": kinds,
            "send of another device": "TypeError",
        }


def test_tensors_of_a_device_of_another_backend_do_not_go_by_shoal() -> None:
    found = run_ranks(c10d_scenarios.by_device, 2, "cpu:shoal,meta:fake", "meta")
    assert found == [{"kinds": ["FakeWork"], "send of another device": "TypeError"}] * 2


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_future_of_an_operation_is_done_when_that_has_been_waited_for(nodes: int) -> None:
    assert run_ranks(c10d_scenarios.futures_of_awaited_operations, 2, 50, nodes=nodes) == [[0, 0]] * 2


def test_a_program_whose_threads_cannot_start_for_a_while_loses_nothing() -> None:
    assert run_ranks(c10d_scenarios.threads_that_cannot_start, 2, timeout=30) == [[2.0, 5.0], []]


def test_operations_and_futures_can_be_waited_for_when_the_interpreter_ends() -> None:
    assert run_ranks(c10d_scenarios.awaited_when_callbacks_are_over, 2, timeout=30) == [[1.0, 3.0]] * 2


def test_a_job_that_is_started_again_with_the_same_store() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for pause in (0.0, 1.0):
        found = run_ranks(c10d_scenarios.started_again, 2, "127.0.0.1", store.port, pause)
        assert found == [(2.0, 1.0), (2.0, 0.0)]


def test_ranks_of_one_machine() -> None:
    with Cluster(4, nodes=1) as cluster:
        assert cluster.start(c10d_scenarios.subgroups).results() == [(2.0, 0, 4), (4.0, 0, 4)] * 2


@pytest.mark.parametrize(
    ("nodes", "elements"),
    [(1, 100_000), *(pytest.param(*job, marks=pytest.mark.slow) for job in ((1, 3), (3, 100_000)))],
)
def test_gathers_fill_arrays_that_are_there(nodes: int, elements: int) -> None:
    for rank, found in enumerate(run_ranks(c10d_scenarios.into_arrays_that_are_there, RANKS, elements, nodes=nodes)):
        assert found["its own part"] == [0.0, 1.0, 2.0]
        assert found["another part"] == [0.0, 1.0, 2.0]
        assert found["input and output"] == [rank, rank + 10, rank + 20]
        if rank == 2:
            assert "expects" in found["misfit"]
        else:
            assert found["misfit"] == [0.0, 1.0, 2.0]
        assert found["uneven"] == "Mismatch"


def test_sparse_tensors_whole_numbers_and_expanded_tensors_are_averaged() -> None:
    assert run_ranks(c10d_scenarios.sparse_and_odd_tensors, 2, nodes=2) == [[], []]


def test_an_evaluation_may_begin_operations_that_are_waited_for_after_it() -> None:
    assert run_ranks(c10d_scenarios.begun_in_inference_mode, 2) == [[], []]


@pytest.mark.parametrize("whose", [0, 1], ids=["its own", "another's"])
def test_reduce_scatters_into_a_part_of_the_input(whose: int) -> None:
    assert run_ranks(c10d_scenarios.scattered_into_the_input, 2, whose, nodes=2) == [0, 0]


def test_callbacks_may_wait_for_operations_that_come_in_another_order_on_each_rank() -> None:
    rounds = 200
    expected = sum(4.0 * number + 1 for number in range(rounds))
    assert run_ranks(c10d_scenarios.callbacks_that_wait, 2, rounds) == [expected] * 2


@pytest.mark.parametrize(
    "hook", ["allreduce_hook", *(pytest.param(hook, marks=pytest.mark.slow) for hook in ("none", "fp16_compress_hook"))]
)
def test_distributed_data_parallel_with_pytorchs_hooks(hook: str) -> None:
    assert len(set(run_ranks(c10d_scenarios.trained_with, 2, hook, 10))) == 1


@pytest.mark.slow
def test_pytorchs_hooks_in_cpp_train_as_those_in_python() -> None:
    for built_in, in_python in (("ALLREDUCE", "allreduce_hook"), ("FP16_COMPRESS", "fp16_compress_hook")):
        found = [run_ranks(c10d_scenarios.trained_with, 2, hook, 5) for hook in (built_in, in_python)]
        assert found[0] == found[1]


@pytest.mark.slow
def test_a_thousand_steps_with_powersgd() -> None:
    with Cluster(2) as cluster:
        assert len(set(cluster.start(c10d_scenarios.trained_with, "PowerSGD", 1000).results(240))) == 1


@pytest.mark.parametrize(
    "where",
    [
        "all_reduce",
        "backward pass",
        "Shoal's hook",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("future", "fp16 hook")),
    ],
)
def test_a_shape_that_differs_is_raised_on_every_rank(where: str) -> None:
    with Cluster(RANKS) as cluster:
        for kind, text, seconds in cluster.start(c10d_scenarios.differs_in_shape, where).results():
            assert kind == ("Mismatch" if where in ("all_reduce", "future") else "RuntimeError"), text
            assert "Mismatch" in text or kind == "Mismatch"
            assert "rank 1" in text, text
            assert seconds <= PROMPT


@pytest.mark.parametrize(
    ("what", "kind_there", "said"),
    [
        ("split sizes", "ValueError", "split sizes"),
        ("a sparse broadcast", "TypeError", ""),
        ("a sparse gather", "TypeError", ""),
        ("an output of another size", "ValueError", "the output has 7 elements"),
        ("too few inputs", "ValueError", "the list of inputs has 2 tensors"),
        ("the first of two", "ValueError", ""),
        ("lists of other lengths", "ValueError", "lists of [1, 2] tensors"),
    ],
)
def test_arguments_that_are_wrong_on_one_rank_are_raised_on_every_rank(what: str, kind_there: str, said: str) -> None:
    with Cluster(RANKS) as cluster:
        for rank, (kind, text, seconds, after) in enumerate(
            cluster.start(c10d_scenarios.wrong_on_one_rank, what).results()
        ):
            assert kind == (kind_there if rank == 1 else "ShoalError"), text
            assert said in text, text
            assert "rank 1" in text, text
            assert seconds <= PROMPT
            assert after == 3


def test_the_time_of_a_receive_counts_from_when_it_is_waited_for() -> None:
    assert run_ranks(c10d_scenarios.received_late, 2) == [7, 0]


def test_a_process_group_leaves_no_job_but_its_own() -> None:
    assert run_ranks(c10d_scenarios.destroyed_after_another_start, 2) == [(True, 2)] * 2


@pytest.mark.parametrize(
    "where",
    [
        "all_reduce",
        "backward pass",
        *(pytest.param(where, marks=pytest.mark.slow) for where in ("Shoal's hook", "fp16 hook")),
    ],
)
def test_a_killed_rank_is_raised_on_every_other(where: str, tmp_path: Path) -> None:
    with Cluster(RANKS) as cluster:
        outcomes = cluster.start(c10d_scenarios.killed, where, str(tmp_path)).wait()
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.exit_code == 0, outcome.describe()
        kind, text, seconds = outcome.value
        assert kind == ("PeerLost" if where == "all_reduce" else "RuntimeError"), text
        assert "PeerLost" in text or kind == "PeerLost"
        assert "rank 1" in text, text
        assert seconds <= PROMPT


@pytest.mark.parametrize("how", ["wait", pytest.param("group", marks=pytest.mark.slow)])
def test_timeouts_are_those_that_were_asked_for(how: str) -> None:
    first, _, third = run_ranks(c10d_scenarios.too_late, RANKS, how)
    for kind, text, seconds in (first, third):
        assert kind == "Timeout", text
        assert 0.9 <= seconds <= 1 + PROMPT


def test_torchrun_and_no_import_of_shoal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "assert 'shoal' not in sys.modules\n"
        "dist.init_process_group('cpu:shoal')\n"
        "ones = torch.ones(1)\n"
        "dist.all_reduce(ones)\n"
        "assert float(ones) == dist.get_world_size() == 2\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", str(script)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_processes_that_the_program_starts_itself(tmp_path: Path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "def main(rank):\n"
        "    dist.init_process_group('shoal', init_method='file://' + sys.argv[1], rank=rank, world_size=2)\n"
        "    ones = torch.ones(1)\n"
        "    dist.all_reduce(ones)\n"
        "    assert float(ones) == 2\n"
        "    dist.destroy_process_group()\n"
        "if __name__ == '__main__':\n"
        "    torch.multiprocessing.spawn(main, nprocs=2)\n"
    )
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
