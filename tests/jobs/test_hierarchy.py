"""Averages inside nodes by PyTorch's groups and between nodes by Shoal (shoal.torch.Hierarchy). Here on the CPU, by gloo."""

from collections.abc import Callable

import hierarchy_scenarios
import pytest
import torch

from shoal.testing import Cluster, run_ranks


@pytest.mark.parametrize(
    ("ranks", "members", "servers", "dtype"),
    [
        (4, 2, 2, torch.float32),
        pytest.param(4, 2, 0, torch.float64, marks=pytest.mark.slow),
        pytest.param(6, 3, 1, torch.float32, marks=pytest.mark.slow),
        pytest.param(3, 3, 0, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_parameters_are_those_of_the_plain_way(ranks: int, members: int, servers: int, dtype: torch.dtype) -> None:
    found = run_ranks(hierarchy_scenarios.trained, ranks, members, dtype, servers=servers, nodes=ranks // members)
    assert all(one == found[0] for one in found), "all ranks have the same bits"
    for plain, hierarchical in found[0]:
        assert hierarchical == pytest.approx(plain, rel=1e-4, abs=1e-6)


def test_nodes_are_found_where_nobody_says_them() -> None:
    for members, nodes, plain, hierarchical in run_ranks(hierarchy_scenarios.by_themselves, 2):
        assert (members, nodes) == (2, [[0, 1]])
        assert hierarchical == pytest.approx(plain, rel=1e-4, abs=1e-6)


def test_uneven_nodes_have_no_hierarchy() -> None:
    for members, plain, hierarchical in run_ranks(hierarchy_scenarios.of_uneven_nodes, 3):
        assert members == 1
        assert hierarchical == pytest.approx(plain, rel=1e-4, abs=1e-6)


def test_groups_that_are_no_nodes_are_refused_on_all_ranks() -> None:
    for said in run_ranks(hierarchy_scenarios.of_other_groups, 4):
        assert "give all ranks of a node the same process group" in said


@pytest.mark.parametrize("members", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_loss_of_a_rank_is_an_error_on_all_others(members: int) -> None:
    with Cluster(4, nodes=4 // members) as cluster:
        outcomes = cluster.start(hierarchy_scenarios.loses_a_rank, members).wait(60)
    for outcome in outcomes[:3]:
        assert outcome.exit_code == 0, outcome.describe()
        assert "raised" in outcome.stdout, outcome.describe()


def test_sparse_gradients_go_the_plain_way_beside_the_others() -> None:
    for plain, hierarchical in run_ranks(hierarchy_scenarios.of_sparse_gradients, 4, nodes=2):
        assert hierarchical == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("what", ["scatter", pytest.param("gather", marks=pytest.mark.slow)])
def test_a_failure_inside_a_node_is_an_error_on_all_ranks_and_stays_one(what: str) -> None:
    with Cluster(4, nodes=2) as cluster:
        outcomes = cluster.start(hierarchy_scenarios.fails_inside_a_node, what).wait(60)
    for outcome in outcomes:
        assert outcome.stdout.startswith("True no error True "), outcome.describe()
        assert "no bus" in outcome.stdout, outcome.describe()


@pytest.mark.slow
def test_a_pass_that_was_left_in_the_midst_is_said_by_the_next() -> None:
    with Cluster(4, nodes=2) as cluster:
        outcomes = cluster.start(hierarchy_scenarios.is_left_in_the_midst).wait(60)
    for outcome in outcomes:
        assert "no bus" in outcome.stdout, outcome.describe()
        assert "a backward pass was left before all of its buckets had come" in outcome.stdout, outcome.describe()


@pytest.mark.slow
def test_hierarchies_that_are_gone_leave_no_threads() -> None:
    for before, after in run_ranks(hierarchy_scenarios.one_after_the_other, 4, nodes=2, timeout=60):
        assert after <= before


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        (hierarchy_scenarios.of_other_backends, "give all the same"),
        (hierarchy_scenarios.of_one_that_is_no_group, "rank 2"),
    ],
)
def test_what_is_wrong_on_one_rank_is_refused_on_all(scenario: Callable[[], str], said: str) -> None:
    for text in run_ranks(scenario, 4, nodes=2):
        assert said in text
