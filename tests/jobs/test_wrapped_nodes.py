"""Our wrapper with nodes whose ranks sum first: DistributedDataParallel(intra=...). Here on the CPU, mostly by gloo."""

import ast
import re

import node_scenarios
import pytest
import torch

import shoal
from shoal.testing import Cluster, run_ranks
from shoal.torch import node_places
from shoal.torch.node_places import Told

WHERE = ["on the CPU", "on a simulated device"]


def assert_close(found: list[float], expected: list[float], name: str = "") -> None:
    """As ``pytest.approx``, which takes long for long lists."""
    torch.testing.assert_close(
        torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-6, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize(
    ("ranks", "members", "servers", "dtype", "backend"),
    [
        (4, 2, 2, torch.float32, "gloo"),
        (4, 2, 0, torch.float32, "shoal"),
        pytest.param(4, 2, 0, torch.float64, "gloo", marks=pytest.mark.slow),
        pytest.param(6, 3, 1, torch.float32, "gloo", marks=pytest.mark.slow),
        pytest.param(8, 4, 1, torch.float32, "gloo", marks=pytest.mark.slow),
        pytest.param(3, 3, 0, torch.float32, "gloo", marks=pytest.mark.slow),
    ],
)
def test_parameters_are_those_of_the_plain_way(
    ranks: int, members: int, servers: int, dtype: torch.dtype, backend: str
) -> None:
    found = run_ranks(
        node_scenarios.trained, ranks, members, dtype, backend, servers=servers, nodes=ranks // members, timeout=120
    )
    assert all(one == found[0] for one in found), "all ranks have the same bits"
    for plain, with_nodes in found[0]:
        assert_close(with_nodes, plain)


@pytest.mark.parametrize("on_device", [False, pytest.param(True, marks=pytest.mark.slow)], ids=WHERE)
def test_every_way_of_training_gives_what_it_gives_without(on_device: bool) -> None:
    found = run_ranks(node_scenarios.in_every_way, 4, on_device, nodes=2, timeout=120)
    for others in zip(*found, strict=True):
        name, plain, with_nodes = others[0]
        assert_close(with_nodes, plain, name)
        assert all(with_nodes == of_other for _, _, of_other in others), f"{name}: all ranks have the same bits"


@pytest.mark.parametrize("on_device", [False, True], ids=WHERE)
def test_what_a_node_sums_is_rounded_once(on_device: bool) -> None:
    for steps in run_ranks(node_scenarios.narrowed, 4, on_device, nodes=2, servers=1):
        for found, expected in steps:
            assert found == expected


def test_some_ranks_may_have_nodes_among_themselves() -> None:
    _, *found = run_ranks(node_scenarios.of_some_ranks, 5, nodes=5)
    for plain, with_nodes in found:
        assert_close(with_nodes, plain)


def test_uneven_nodes_go_the_plain_way() -> None:
    for has_nodes, plain, with_nodes in run_ranks(node_scenarios.of_uneven_nodes, 3):
        assert not has_nodes
        assert_close(with_nodes, plain)


def test_nodes_on_the_cpu_are_not_chosen_by_themselves() -> None:
    assert run_ranks(node_scenarios.chosen_by_itself, 2, nodes=1) == [False] * 2


def test_gpus_of_nodes_are_found() -> None:
    def told(machines: str, gpus: str, intra: object = None) -> dict[int, Told]:
        pairs = enumerate(zip(machines, gpus, strict=True))
        return {rank: Told(intra, machine, None if gpu == "-" else gpu, "") for rank, (machine, gpu) in pairs}

    assert node_places.decided(told("aabb", "0101")) == [[0, 1], [2, 3]]
    assert node_places.decided(told("abab", "0011")) == [[0, 2], [1, 3]]
    assert node_places.decided(told("aaaa", "0123")) == [[0, 1, 2, 3]]
    assert node_places.decided(told("ab", "00")) is None, "one rank a node"
    assert node_places.decided(told("aab", "010")) is None, "uneven"
    assert node_places.decided(told("aabb", "0100")) is None, "two ranks on one GPU"
    assert node_places.decided(told("aabb", "010-")) is None, "one on the CPU"
    assert node_places.decided(told("aabb", "0101", "off")) is None
    given = told("ab", "--", [0, 1])
    assert node_places.decided(given) == [[0, 1]]
    with pytest.raises(ValueError, match="give every rank that wraps it the group of its node"):
        node_places.decided({**given, 1: given[1]._replace(intra=None)})


def test_what_makes_no_nodes_is_refused_on_all_ranks() -> None:
    with Cluster(4, nodes=2) as cluster:
        outcomes = cluster.start(node_scenarios.refused).wait(60)
    for rank, outcome in enumerate(outcomes):
        in_two, text, no_member, other_groups, some_only, too_many, *good, failing = ast.literal_eval(outcome.stdout)
        assert in_two.startswith("ValueError"), in_two
        assert "give all ranks of a node the same process group" in in_two
        assert text.startswith("TypeError: intra must be")
        assert no_member.startswith("ValueError: this rank is not a member of intra")
        assert "give all ranks of a node the same process group" in other_groups
        assert "give every rank that wraps it the group of its node" in some_only
        assert rank in (1, 3) or "give every rank that wraps it the group of its node" in too_many
        assert "no bus" in failing
        assert good == ["no error"] * 2, "each wrapper has a group of its own"


@pytest.mark.parametrize("on_device", [False, True], ids=WHERE)
def test_errors_of_one_rank_are_those_of_all_and_what_follows_goes_on(on_device: bool) -> None:
    for rank, found in enumerate(run_ranks(node_scenarios.errors_and_after, 4, on_device, nodes=2, timeout=60)):
        first, missing, second, frozen, third, broken, fourth = found
        assert [first, second, third, fourth] == ["no error"] * 4, found
        assert missing.startswith("ShoalError"), missing
        assert "3.weight" in missing
        assert frozen.startswith("Mismatch"), frozen
        assert "in the midst" in broken if rank == 3 else broken.startswith("ShoalError"), broken


@pytest.mark.parametrize(
    ("ranks", "members", "moment"),
    [
        (4, 2, "in the midst"),
        pytest.param(4, 4, "in the midst", marks=pytest.mark.slow),
        pytest.param(4, 4, "at the end", marks=pytest.mark.slow),
        pytest.param(4, 2, "before the pass", marks=pytest.mark.slow),
        pytest.param(4, 2, "at the end", marks=pytest.mark.slow),
        pytest.param(8, 4, "in the midst", marks=pytest.mark.slow),
    ],
)
def test_the_loss_of_a_rank_is_an_error_on_all_others_before_the_optimizers_step(
    ranks: int, members: int, moment: str
) -> None:
    with Cluster(ranks, nodes=ranks // members) as cluster:
        outcomes = cluster.start(node_scenarios.loses_a_rank, members, moment).wait(60)
    for outcome in outcomes[: ranks - 1]:
        assert "kept=True" in outcome.stdout, outcome.describe()
        assert re.search(rf"rank {ranks - 1} \(.*\) is lost", outcome.stdout), outcome.describe()


def test_a_failure_inside_a_node_is_an_error_on_all_ranks_and_stays_one() -> None:
    with Cluster(4, nodes=2) as cluster:
        outcomes = cluster.start(node_scenarios.loses_its_node).wait(60)
    for outcome in outcomes:
        assert outcome.stdout.startswith("['no error', "), outcome.describe()
        assert outcome.stdout.count("no bus") == 2, outcome.describe()


LOST, LATE = shoal.PeerLost("rank 7 (elsewhere) is lost", 7, "elsewhere"), shoal.Timeout("rank 7 (elsewhere) is late")


@pytest.mark.parametrize(
    ("what", "loss"),
    [
        ("layout", LOST),
        pytest.param("needed", LOST, marks=pytest.mark.slow),
        pytest.param("layout", LATE, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_hears_of_a_loss_first_keeps_nobody_in_its_node(what: str, loss: Exception) -> None:
    with Cluster(4, nodes=2) as cluster:
        outcomes = cluster.start(node_scenarios.loses_the_job_first, what, loss).wait(60)
    for outcome in outcomes:
        assert outcome.stdout.startswith("after True: "), outcome.describe()
        assert str(loss) in outcome.stdout, outcome.describe()


def test_wrong_sums_on_one_rank_are_an_error_on_all() -> None:
    for found in run_ranks(node_scenarios.sums_wrongly, 4, nodes=2):
        assert "wrong sums on some rank" in found


def test_wrappers_and_the_program_have_groups_of_their_own() -> None:
    for steps in run_ranks(node_scenarios.beside_the_programs_groups, 4, nodes=2, timeout=60):
        for plain, with_nodes in steps:
            assert_close(with_nodes, plain)


def test_the_order_of_a_groups_ranks_makes_no_difference() -> None:
    for plain, with_nodes in run_ranks(node_scenarios.in_another_order, 4, nodes=2, timeout=60):
        assert_close(with_nodes, plain)


def test_a_group_is_used_again_when_its_wrapper_is_gone() -> None:
    for counts in run_ranks(node_scenarios.one_after_the_other, 4, nodes=2, timeout=60):
        assert counts == counts[:1] * 4


def test_a_wrapper_that_is_gone_leaves_nothing_and_one_that_is_there_keeps_no_process() -> None:
    with Cluster(4, nodes=2) as cluster:
        outcomes = cluster.start(node_scenarios.ends_at_once).wait(60)
    assert [(outcome.exit_code, outcome.stderr) for outcome in outcomes] == [(0, "")] * 4


def test_a_rank_copies_its_slice_to_the_host_and_back_and_no_more() -> None:
    for size, plain, with_nodes, *gradients in run_ranks(node_scenarios.copied, 4, 2, nodes=2, timeout=60):
        assert plain == 2 * size
        assert with_nodes == size, "half of the gradients, twice"
        assert_close(gradients[1], gradients[0])
