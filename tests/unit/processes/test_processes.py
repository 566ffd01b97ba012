"""What starting local processes decides before anything is started, and how output is cut into lines."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.processes import Host, JobDescription, Program, describe_exit, free_master_port, rank_environment, spread
from shoal.processes.environment import with_secret
from shoal.processes.output import LINE_LIMIT, LineSplitter

PROGRAM = Program(("x",), is_python=True)


def test_ranks_are_spread_in_order_and_the_first_nodes_get_one_more() -> None:
    places = [(place.local_rank, place.local_size) for place in spread(5, 2)]
    assert places == [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2)]


@given(st.integers(1, 64), st.integers(1, 64))
def test_every_rank_has_a_place_of_its_own(ranks: int, nodes: int) -> None:
    if nodes > ranks:
        with pytest.raises(ValueError, match="every node needs at least one"):
            spread(ranks, nodes)
        return
    places = spread(ranks, nodes)
    assert len(places) == ranks
    sizes = [place.local_size for place in places if place.local_rank == 0]
    assert len(sizes) == nodes
    assert sum(sizes) == ranks
    assert max(sizes) - min(sizes) <= 1


def test_servers_need_two_nodes_and_the_refusal_says_how() -> None:
    with pytest.raises(ValueError, match=r"nothing for a server to do: add --nodes .*--nodes 4"):
        JobDescription(PROGRAM, ranks=4, servers=2)
    assert JobDescription(PROGRAM, ranks=4, nodes=2, servers=2).servers == 2


def test_servers_are_on_other_hosts_than_ranks() -> None:
    hosts = [Host("a"), Host("b"), Host("c")]
    with pytest.raises(ValueError, match=r"b has ranks, .* name other hosts in --server-hosts"):
        JobDescription(PROGRAM, ranks=2, servers=1, hosts=hosts, server_hosts=["b"])
    # No rank is left for c.
    job = JobDescription(PROGRAM, ranks=2, servers=1, hosts=hosts, server_hosts=["c"])
    assert job.named_twice({"a": "1", "b": "2", "c": "3"}) == ""
    assert job.named_twice({"a": "1", "b": "1", "c": "3"}).startswith("a and b are the same machine")
    assert job.named_twice({"a": "1", "b": "2", "c": "2"}).startswith("c is the machine of b, which has ranks")


def test_a_rank_finds_who_and_where_it_is() -> None:
    environment = rank_environment(
        {"HOME": "/h", "SHOAL_RENDEZVOUS": "elsewhere:1"}, spread(4, 2), 3, 29500, ["127.0.0.1:1", "127.0.0.1:2"]
    )
    assert environment == {
        "HOME": "/h",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "SHOAL_SERVERS": "127.0.0.1:1,127.0.0.1:2",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_what_the_user_has_set_stays() -> None:
    base = {"OMP_NUM_THREADS": "3", "SHOAL_SERVERS": "h:1"}
    environment = rank_environment(base, spread(2, 1), 0, 29500, [])
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["SHOAL_SERVERS"] == "h:1"
    assert "OMP_NUM_THREADS" not in rank_environment({}, spread(1, 1), 0, 29500, [])


def test_a_secret_is_made_unless_there_is_one() -> None:
    made = with_secret({})["SHOAL_SECRET"]
    assert len(made) == 64
    assert made != with_secret({})["SHOAL_SECRET"]
    assert with_secret({"SHOAL_SECRET": "mine"}) == {"SHOAL_SECRET": "mine"}
    assert with_secret({"SHOAL_SECRET_FILE": "/f"}) == {"SHOAL_SECRET_FILE": "/f"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_master_port_and_the_next_are_free(host: str) -> None:
    port = free_master_port(host)
    for free in (port, port + 1):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            listener.bind((host, free))


def test_the_master_port_and_the_next_are_of_the_range_that_is_given() -> None:
    first = free_master_port()
    assert free_master_port(ports=(first, first + 1)) == first
    with socket.create_server(("127.0.0.1", first + 1)), pytest.raises(RuntimeError) as caught:
        free_master_port(ports=(first, first + 1))
    assert "on 127.0.0.1" in str(caught.value)
    assert f"widen SHOAL_PORT_RANGE={first}-{first + 1}" in str(caught.value)
    with pytest.raises(RuntimeError, match="no two ports in a row"):
        free_master_port(ports=(first, first))


def test_exits_are_told_in_words() -> None:
    assert describe_exit(3) == "failed with exit code 3"
    assert describe_exit(-9) == "was ended by SIGKILL"


@given(st.lists(st.text(alphabet="ab\n").map(str.encode)))
def test_lines_do_not_depend_on_how_they_arrive(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)] + splitter.flush()
    assert lines == b"".join(pieces).splitlines()


def test_line_ends() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\r") == []
    assert splitter.feed(b"\ntwo\n\nthr") == [b"one", b"two", b""]
    assert splitter.feed(b"ee") == []
    assert splitter.flush() == [b"three"]
    assert splitter.flush() == []


def test_a_progress_bar_is_seen_while_it_moves() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r 10%") == []
    assert splitter.feed(b"\r 20%\r 30%") == [b" 10%", b" 20%"]
    assert splitter.flush() == [b" 30%"]


def test_a_line_without_end_is_cut() -> None:
    splitter = LineSplitter()
    lines = splitter.feed(b"x" * (2 * LINE_LIMIT + 1))
    assert [len(line) for line in lines] == [LINE_LIMIT, LINE_LIMIT]
    assert splitter.flush() == [b"x"]
