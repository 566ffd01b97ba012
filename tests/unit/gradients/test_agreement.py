"""Statements that are the same on all ranks, and the small votes beside them."""

from in_memory_ranks import Ranks

from shoal.gradients.agreement import Statement
from shoal.gradients.arrangement import Arrangement, Kind
from shoal.gradients.arrival_order import ArrivalOrder
from shoal.gradients.layout import Item
from shoal.gradients.layout_statement import LayoutStatement
from shoal.gradients.needed_buffers import NeededBuffers
from shoal.gradients.static_graph import StaticGraph


def agreed(*statements: Statement) -> list[bool]:
    ranks = Ranks(len(statements))
    comparisons = [statement.compare(ranks[rank], "layout") for rank, statement in enumerate(statements)]
    return [comparison.agreed() for comparison in comparisons]


def test_ranks_agree_on_the_same_lines_alone() -> None:
    same = ["a weight of 3", "a bias of 1"]
    assert agreed(Statement(same), Statement(list(same)), Statement(same)) == [True] * 3
    assert agreed(Statement(same), Statement(same[:1]), Statement(same)) == [False] * 3


def test_what_follows_a_pass_and_what_is_new_is_agreed_on_too() -> None:
    def stated(known: bool = True) -> LayoutStatement:
        return LayoutStatement(["a", "b"], [64, 64], find_unused=False, order_is_known=known)

    assert agreed(stated().of_pass(True), stated().of_pass(True)) == [True] * 2
    assert agreed(stated().of_pass(True), stated().of_pass(False)) == [False] * 2
    assert agreed(stated().of_pass(False, ["new"]), stated().of_pass(False)) == [False] * 2
    assert agreed(stated(True).of_pass(False), stated(False).of_pass(False)) == [False] * 2
    assert stated().of_pass(True).lines[0] == (
        "2 parameters in arrival order, whose order is looked at after this pass, find_unused_parameters=False, buffers=[64, 64]"
    )


def test_a_buffer_is_needed_where_any_rank_has_a_gradient_for_it() -> None:
    ranks, touched = Ranks(2), [(0,), (0, 1), (2,), (3,)]
    first = NeededBuffers(ranks[0], touched, 4, [0])
    assert first.is_certain(0)
    assert not first.is_certain(1)
    second = NeededBuffers(ranks[1], touched, 4, [2])
    assert first.answer() == second.answer() == {0, 2}
    assert first.is_certain(2)
    assert first.includes([0, 2])
    assert not first.includes(touched[1])


def test_every_buffer_is_needed_where_a_rank_could_not_say() -> None:
    ranks = Ranks(2)
    needed = NeededBuffers(ranks[0], [(0,), (1,)], 2, [0])
    ranks[1].fail("needed", "its pass has ended with an error")
    assert needed.answer() == {0, 1}


def test_the_order_of_one_rank_becomes_that_of_all() -> None:
    ranks = Ranks(2)
    kind = Kind(0, "float32")
    now = Arrangement([Item(str(index), 16, 4) for index in range(3)], [kind] * 3, [2, 1, 0], 64)
    sent = []
    for rank, arrivals in enumerate(([1, 0, 2], [0, 1, 2])):
        watch = ArrivalOrder()
        assert watch.is_due
        watch.passed(arrivals)
        sent.append(watch.exchange(ranks[rank], now, root=1))
    assert [each.received() for each in sent] == [[0, 1, 2]] * 2


def test_a_static_graph_relies_on_what_came_in_its_first_pass() -> None:
    static = StaticGraph()
    assert static.start() is None
    static.learn([0, 1, 0])
    assert static.start() == {0, 1}
    assert [static.arrived(index) for index in (0, 1, 0)] == [False, True, True]
