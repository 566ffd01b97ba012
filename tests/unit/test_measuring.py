"""measuring.py and survey.py: what a connection measures, who measures whom, and what is made of it."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from local_front import SECRET, running

from shoal import links, listening, measuring, messages
from shoal.addresses import Address, resolve
from shoal.door import Door
from shoal.handshake import Client, HandshakeRefused, Refusal, Role
from shoal.messages import MessageError
from shoal.patience import Patience
from shoal.survey import NOTHING, Measured, Pair, Survey

T = TypeVar("T")
INCARNATION = bytes(range(16))
LIMIT = 20.0


def within_limit(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, LIMIT))


def client(incarnation: bytes = INCARNATION, secret: bytes = SECRET) -> Client:
    return Client(secret, Role.MEASURE, 1, incarnation=incarnation)


async def connection() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection over loopback."""
    listener = listening.listen(Address("127.0.0.1", 0))[0]
    caller = await links.connect(*resolve(links.local_address(listener)))
    called, _ = await asyncio.get_running_loop().sock_accept(listener)
    listener.close()
    return caller, links.watched(called)


# --- One connection ---


@pytest.mark.parametrize("both", [False, True])
def test_bytes_are_counted_in_the_directions_asked_for(both: bool) -> None:
    async def measure() -> Measured:
        caller, called = await connection()
        found, _ = await asyncio.gather(measuring.call(caller, both), measuring.answer(called))
        assert (caller.fileno(), called.fileno()) == (-1, -1)
        return found

    found = within_limit(measure())
    assert found.sent > 0
    assert (found.received > 0) == both
    assert 0 < found.round_trip < 10**6
    assert 0 < found.busy <= 100


def test_a_connection_that_breaks_has_measured_nothing() -> None:
    async def measure() -> Measured:
        caller, called = await connection()
        asyncio.get_running_loop().call_later(0.02, called.close)
        return await measuring.call(caller, True)

    assert within_limit(measure()) == NOTHING


def test_a_caller_that_says_something_else_is_refused() -> None:
    async def say() -> None:
        caller, called = await connection()
        with contextlib.closing(caller):
            await links.send(caller, messages.pack("job", {}))
            with pytest.raises(MessageError, match="'flow'"):
                await measuring.answer(called)

    within_limit(say())


def test_cancelling_ends_the_thread() -> None:
    async def cancel() -> None:
        caller, called = await connection()
        measurement = asyncio.create_task(measuring.call(caller, True))
        await asyncio.sleep(0.02)
        measurement.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measurement
        called.close()

    within_limit(cancel())
    deadline = time.monotonic() + LIMIT
    while any(thread.name == "shoal-measure" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the thread goes on"
        time.sleep(0.01)


def test_nobody_at_an_address_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nowhere = Address("127.0.0.1", listener.getsockname()[1])
    assert within_limit(measuring.connect(client, nowhere, [])) is None


# --- Who lets measure ---


def test_a_dedicated_server_measures_with_those_who_hold_its_secret() -> None:
    async def measure(address: Address) -> Measured:
        assert await measuring.connect(lambda: client(secret=b"the secret of somebody else"), address, []) is None
        link = await measuring.connect(client, address, [])
        assert link is not None
        return await measuring.call(link, True)

    with running() as front:
        found = within_limit(measure(front.address))
    assert found.sent > 0
    assert found.received > 0


def with_door(act: Callable[[Door], Awaitable[None]]) -> None:
    async def run() -> None:
        door = Door(listening.listen(Address("127.0.0.1", 0))[0], SECRET, 0, Patience(answer=0.3))
        door.open(INCARNATION, 4)
        try:
            await act(door)
        finally:
            await door.close()

    within_limit(run())


def test_a_rank_measures_before_the_welcome() -> None:
    async def measure(door: Door) -> None:
        link = await measuring.connect(client, door.address, [])
        assert link is not None
        assert (await measuring.call(link, False)).sent > 0

    with_door(measure)


def test_a_rank_measures_for_its_own_job_alone() -> None:
    async def call(door: Door) -> None:
        with pytest.raises(HandshakeRefused) as caught:
            await links.connect_as(client(bytes(16)), door.address, [], LIMIT)
        assert caught.value.refusal == Refusal.UNKNOWN_INCARNATION

    with_door(call)


def test_a_node_is_not_let_in_before_the_welcome() -> None:
    async def call(door: Door) -> None:
        early = Client(SECRET, Role.SERVER, 1, incarnation=INCARNATION)
        link = await links.connect_as(early, door.address, [], LIMIT)
        with contextlib.closing(link), pytest.raises(links.Closed):
            await links.receive_exactly(link, 1)
        assert door.node_links == {}

    with_door(call)


# --- Who measures whom ---


def survey_of(nodes: int, servers: int) -> Survey:
    return Survey(
        [Address(f"10.0.0.{i}", 5000 + i) for i in range(nodes)], [Address(f"10.0.1.{j}", 7077) for j in range(servers)]
    )


def run_survey(survey: Survey, rates: dict[str, int], busy: int = 10, usual: int = 1000) -> int:
    """Measures as if links had these rates, by address. How many rounds that took."""

    def flow(pair: Pair) -> Measured:
        rate = min(rates.get(machine.address.host, usual) for machine in (pair.caller, pair.called))
        return Measured(rate, rate if pair.both else 0, 50, busy)

    count = 0
    for rounds in (survey.first_rounds, survey.second_look):
        for pairs in rounds():
            count += 1
            for pair in pairs:
                survey.note(pair, flow(pair))
    return count


@pytest.mark.parametrize(("nodes", "servers"), [(2, 0), (2, 1), (3, 2), (4, 4), (8, 3), (3, 8), (9, 9)])
def test_in_a_round_everybody_measures_once_and_in_the_end_all_have(nodes: int, servers: int) -> None:
    survey = survey_of(nodes, servers)
    sent, received = set(), set()
    for pairs in survey.first_rounds():
        senders = [p.caller.address for p in pairs] + [p.called.address for p in pairs if p.both]
        receivers = [p.called.address for p in pairs] + [p.caller.address for p in pairs if p.both]
        assert len(senders) == len(set(senders))
        assert len(receivers) == len(set(receivers))
        assert all(pair.caller is not pair.called for pair in pairs)
        sent.update(senders)
        received.update(receivers)
    assert len(sent) == len(received) == nodes + servers


@pytest.mark.parametrize("slow", ["10.0.0.0", "10.0.0.3", "10.0.1.2"])
def test_one_slow_link_is_found_and_nobody_else(slow: str) -> None:
    survey = survey_of(4, 4)
    run_survey(survey, {slow: 500})
    network = survey.network()
    assert network is not None
    everyone = [f"10.0.0.{i}" for i in range(4)] + [f"10.0.1.{j}" for j in range(4)]
    rates = [*network.node_rates, *network.server_rates]
    assert rates == [500 if host == slow else 1000 for host in everyone]
    assert network.round_trip == pytest.approx(50e-6)


def test_equal_links_need_no_second_look() -> None:
    survey = survey_of(4, 4)
    assert run_survey(survey, {"10.0.0.1": 950}) == len(survey.first_rounds())
    assert survey.second_look() == []
    network = survey.network()
    assert network is not None
    assert len({*network.node_rates, *network.server_rates}) == 1


def test_what_only_processors_bounded_says_nothing_about_links() -> None:
    survey = survey_of(4, 2)
    run_survey(survey, {"10.0.0.1": 300, "10.0.1.0": 700}, busy=90)
    network = survey.network()
    assert network is not None
    assert {*network.node_rates, *network.server_rates} == {1000}


def test_what_shares_an_address_shares_a_link() -> None:
    survey = Survey([Address("a", 1), Address("a", 2), Address("b", 3)], [Address("b", 7077), Address("c", 7077)])
    run_survey(survey, {})
    network = survey.network()
    assert network is not None
    assert network.node_rates == (500, 500, 500)
    assert network.server_rates == (500, 1000)


def test_one_machine_has_nothing_to_measure() -> None:
    assert Survey([Address("127.0.0.1", port) for port in (1, 2, 3)], [Address("127.0.0.1", 7077)]).first_rounds() == []


def test_who_could_not_be_measured_counts_as_most() -> None:
    survey = survey_of(3, 2)
    run_survey(survey, {"10.0.1.1": 0})
    assert survey.unknown() == ["10.0.1.1:7077"]
    network = survey.network()
    assert network is not None
    assert {*network.node_rates, *network.server_rates} == {1000}


def test_nothing_found_out_is_no_network() -> None:
    survey = survey_of(3, 2)
    run_survey(survey, {}, usual=0)
    assert survey.network() is None
