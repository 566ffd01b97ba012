"""Rails: which address is on which, what is said of them, and the lanes of a job that has several."""

import asyncio
import ipaddress
import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from local_front import running
from shoal.assembly.connect import welcome_over_rails
from shoal.assembly.control_links import Member
from shoal.assembly.find_rails import _matched, find_rails
from shoal.assembly.rails import RailEnd, RailPlaces, in_order_of, lanes_over, parse_ends
from shoal.assembly.terms import Welcome, parse_welcome
from shoal.config.addresses import Address
from shoal.config.launchers import Launch
from shoal.config.settings import Settings
from shoal.errors import AuthenticationError, ConfigurationError
from shoal.net.deadlines import Deadlines
from shoal.net.handshake import Client, Role
from shoal.net.messages import Fields, Message, MessageError
from shoal.tuning.channels import Threads
from shoal.tuning.measured import Network

NETWORKS = [ipaddress.ip_network("10.98.0.0/24"), ipaddress.ip_network("10.98.1.0/24")]


def end(name: str, host: str, prefix: int = 24) -> RailEnd:
    return RailEnd(name, Address(host, 7000), prefix)


def member(rank: int, *rails: RailEnd) -> Member:
    return Member(rank, "ab"[rank], rails[0].address, f"m{rank}", 0, Threads(0, 2), rails, None)  # type: ignore[arg-type]


ZERO = member(0, end("eth0", "10.98.0.1"), end("eth1", "10.98.1.1"))
ONE = member(1, end("eno1", "10.98.0.2"), end("eno2", "10.98.1.2"))


@pytest.mark.parametrize(
    ("hosts", "order"),
    [
        (["10.98.0.7", "10.98.1.7"], [0, 1]),
        (["10.98.1.7", "10.98.0.7"], [1, 0]),
        (["192.0.2.1", "10.98.1.7", "10.98.0.7"], [2, 1]),
        (["192.0.2.1", "10.98.0.7"], [1, 0]),
        (["192.0.2.1", "192.0.2.2"], [0, 1]),
        (["10.98.0.7"], None),
        (["192.0.2.1", "10.98.0.7", "192.0.2.2"], None),
        ([], None),
        (["host", "10.98.1.7"], [0, 1]),
    ],
)
def test_an_address_is_on_the_rail_whose_network_it_is_in(hosts: list[str], order: list[int] | None) -> None:
    assert in_order_of(NETWORKS, hosts) == order


def test_rails_of_one_network_are_told_apart_by_their_order() -> None:
    assert in_order_of([NETWORKS[0]] * 2, ["10.98.0.7", "10.98.0.8"]) == [0, 1]


def test_every_rail_has_as_many_lanes() -> None:
    assert [lanes_over(2, lanes, 64) for lanes in (1, 2, 3, 64)] == [2, 2, 4, 64]
    assert lanes_over(3, 64, 64) == 63


def test_a_server_without_one_of_the_networks_is_refused_by_name() -> None:
    server = Address("10.98.0.3", 7077)
    with pytest.raises(
        ConfigurationError, match=r"10\.98\.0\.3:7077 listens at .* 10\.98\.1\.0/24 \(eth1 on rank 0 \(a\)\)"
    ):
        _matched(server, [server], ZERO, NETWORKS)


def test_when_one_server_refuses_no_other_is_asked_any_more() -> None:
    async def ask() -> None:
        before = asyncio.all_tasks()
        with running() as front, socket.create_server(("127.0.0.1", 0)) as silent:
            servers = [Address(*silent.getsockname()), front.address]

            def client() -> Client:
                return Client(b"the secret of another job", Role.MEASURE, 0, incarnation=bytes(16))

            with pytest.raises(AuthenticationError, match="asked the server"):
                await find_rails([ZERO, ONE], servers, client, [], Deadlines())
            assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(ask(), 20))


def ends_of(*fields: Fields) -> tuple[RailEnd, ...]:
    return parse_ends(Message("join", json.loads(json.dumps({"rails": fields}))))


def test_what_a_rank_says_of_its_interfaces_comes_back() -> None:
    assert ends_of(*(one.as_fields() for one in ZERO.rails)) == ZERO.rails
    assert ends_of() == ()


@pytest.mark.parametrize(
    "fields",
    [
        [ZERO.rails[0].as_fields()],
        [ZERO.rails[0].as_fields()] * 9,
        [ZERO.rails[0].as_fields(), {"name": "eth1", "address": ["10.98.1.1", 1], "prefix": 33}],
        [ZERO.rails[0].as_fields(), {"name": "eth1", "address": ["here", 1], "prefix": 24}],
        [ZERO.rails[0].as_fields(), {"name": "eth1", "prefix": 24}],
    ],
)
def test_what_cannot_be_said_of_interfaces_is_refused(fields: list[Fields]) -> None:
    with pytest.raises(MessageError):
        ends_of(*fields)


def welcome(*, lanes: int = 1, rates: tuple[int, int] = (40, 20), servers: bool = True) -> Welcome:
    dedicated = (Address("10.98.0.3", 7077), Address("s", 7077)) if servers else ()
    places = [
        RailPlaces(
            tuple(rank.rails[rail].name for rank in (ZERO, ONE)),
            tuple(rank.rails[rail].address for rank in (ZERO, ONE)),
            tuple(Address(f"10.98.{rail}.{host}", 7077) for host in (3, 4)[: len(dedicated)]),
        )
        for rail in (0, 1)
    ]
    networks = [Network((rate * 10**6,) * 2, (rate * 10**6,) * len(dedicated), 1e-4) for rate in rates]
    launch = Launch("by hand", 0, 2, 0, 1, master_host=None, master_port=29500, job="")
    settings = Settings(launch=launch, servers=dedicated, sockets=lanes)
    return welcome_over_rails([ZERO, ONE], settings, {}, bytes(16), networks, places)


def test_shares_are_by_the_rates_of_the_rails() -> None:
    assert welcome().terms.weights == (0, 0, 0, 0, 10_000, 5_000, 10_000, 5_000)
    assert welcome(servers=False).terms.weights == (10_000, 5_000) * 2
    assert welcome(rates=(40, 40)).terms.weights == (0, 0, 0, 0, 1, 1, 1, 1)
    assert welcome().rate == 60_000_000


def test_a_rail_that_is_too_slow_for_a_share_has_links_all_the_same() -> None:
    found = welcome(rates=(1000, 10), servers=False)
    assert found.terms.weights == (10_000, 0) * 2
    assert not found.standby
    assert all(map(found.is_linked, found.servers))


def test_lanes_alternate_between_the_rails() -> None:
    found = welcome(lanes=3)
    assert found.lanes == 4
    assert [found.where(index).host for index in range(8, 12)] == ["10.98.0.3", "10.98.1.3"] * 2
    assert found.where(6) == Address("10.98.0.2", 7000)
    assert found.sources(9, 1) == ["10.98.1.2"]
    assert found.lanes_with(8) == found.lanes_with(10) == [8, 10]
    assert found.lanes_with(15) == [13, 15]
    assert found.way(7, 0) == " from 10.98.1.1 (eth1)"


def test_each_channel_has_lanes_on_every_network() -> None:
    found = replace(welcome(lanes=8), channels=2)
    assert [found.terms.channel_of(index) for index in range(8)] == [0, 0, 1, 1] * 2
    assert [found.lanes_with(8 + index) for index in (0, 4, 3, 6)] == [[8, 12], [8, 12], [11, 15], [10, 14]]
    assert found.controls == 5
    assert [found.control_channel(number) for number in range(5)] == [0, 0, 0, 1, 1]
    assert [found.control_rail(number) for number in range(5)] == [None, *found.rails, *found.rails]


def test_a_rank_is_called_over_another_network_where_the_first_is_gone() -> None:
    assert welcome().ways_to(1, 0) == [
        (Address("10.98.0.2", 7000), None),
        (Address("10.98.1.2", 7000), ["10.98.1.1"]),
    ]


def test_lanes_of_a_server_over_one_network_have_a_name_of_their_own() -> None:
    names = welcome(lanes=4).server_names()
    assert names[4:8] == ["b (rank 1, eno1)", "b (rank 1, eno2)"] * 2
    assert names[8:12] == ["10.98.0.3:7077 (eth0)", "10.98.1.3:7077 (eth1)"] * 2


def test_one_network_needs_no_rail() -> None:
    plain = Welcome(bytes(16), ("a",), (Address("h", 1),), (0,), welcome().servers[:1], 2, welcome().limits, 15)
    assert (plain.sources(1, 0), plain.way(1, 0), plain.lanes_with(1)) == (None, "", [0, 1])
    assert plain.where(1) == Address("h", 1)
    assert plain.ways_to(0, 0) == [(Address("h", 1), None)]


def over_the_wire(**changes: Any) -> Welcome:
    fields = json.loads(json.dumps({**welcome().as_fields(), **changes}))
    return parse_welcome(Message("welcome", fields), 2)


def test_a_welcome_with_rails_comes_back_as_it_was() -> None:
    assert over_the_wire() == welcome()


def test_what_cannot_be_said_of_rails_is_refused() -> None:
    rails = json.loads(json.dumps(welcome().as_fields()["rails"]))
    idle = [{**rail, "weights": [0, 0, 0, 0]} for rail in rails]
    short = [rails[0], {**rails[1], "addresses": rails[1]["addresses"][:1]}]
    servers = json.loads(json.dumps(welcome().as_fields()["servers"]))
    for changes in ({"lanes": 3}, {"rails": rails[:1]}, {"rails": idle}, {"rails": short}, {"servers": servers[::-1]}):
        with pytest.raises(MessageError, match="'welcome"):
            over_the_wire(**changes)
