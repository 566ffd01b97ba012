"""Hosts as they are written, and which ranks go where."""

import socket
from pathlib import Path

import pytest

from shoal.processes import Host, parse_host_names, parse_hosts, read_hostfile
from shoal.processes.hosts import assign, is_here, is_own
from shoal.processes.machines import own_address


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("host1:4,host2:2", [Host("host1", 4), Host("host2", 2)]),
        ("host1", [Host("host1", 1)]),
        (" a:1 , me@b.example:2 ", [Host("a", 1), Host("me@b.example", 2)]),
        ("10.0.0.7:3,[fe80::7%eth0.1]:2,[::2]", [Host("10.0.0.7", 3), Host("fe80::7%eth0.1", 2), Host("::2", 1)]),
        # As mpirun has it.
        ("a,a,b:2,a:2", [Host("a", 4), Host("b", 2)]),
    ],
)
def test_hosts_have_slots(text: str, hosts: list[Host]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:0", "no number of slots"),
        ("a:", "no number of slots"),
        ("a:-1", "no number of slots"),
        ("", "not the name or address of a host"),
        ("a:1,,b:1", "not the name or address of a host"),
        ("-oProxyCommand=x", "not the name or address of a host"),
        ("-l@a", "not the name of a user"),
        ("a b:1", "not the name or address of a host"),
        ("fe80::7:2", "written in brackets"),
        ("[fe80::7%$(x)]:2", "not the name or number of a network interface"),
    ],
)
def test_what_is_no_host_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_hosts(text)


def test_servers_hosts_have_no_slots() -> None:
    assert parse_host_names("h3, me@h4,[::1]") == ["h3", "me@h4", "::1"]
    with pytest.raises(ValueError, match="brackets"):
        parse_host_names("h3:2")


def test_a_hostfile_has_a_host_a_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two racks\nhost1 slots=4\n\nhost2:2   # slow\nhost3\nme@host4 slots = 3\nhost1 slots=1\n")
    assert read_hostfile(path) == [Host("host1", 5), Host("host2", 2), Host("host3", 1), Host("me@host4", 3)]


@pytest.mark.parametrize("line", ["host1 slots=0", "host1 slots=", "host1 4", "host1:2 slots=2", "host1 max_slots=4"])
def test_a_wrong_line_of_a_hostfile_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"host0 slots=1\n{line}\n")
    with pytest.raises(ValueError, match="hosts, line 2: "):
        read_hostfile(path)


def test_a_hostfile_without_hosts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# nobody\n")
    with pytest.raises(ValueError, match="names no host"):
        read_hostfile(path)


def test_ranks_fill_the_hosts_in_order() -> None:
    placed = assign(5, [Host("b", 2), Host("a", 4), Host("c", 1)])
    assert [(host, place.local_rank, place.local_size) for host, place in placed] == [
        ("b", 0, 2),
        ("b", 1, 2),
        ("a", 0, 3),
        ("a", 1, 3),
        ("a", 2, 3),
    ]
    with pytest.raises(ValueError, match=r"8 ranks need 8 slots, and b:2,a:4 has 6: name more hosts"):
        assign(8, [Host("b", 2), Host("a", 4)])


@pytest.mark.parametrize("name", ["localhost", "LocalHost", "127.0.0.1", "::1", socket.gethostname()])
def test_this_machine_needs_no_ssh(name: str) -> None:
    assert is_here(name)


@pytest.mark.parametrize("name", ["me@localhost", "192.0.2.7", "2001:db8::7"])
def test_other_machines_and_other_users_do(name: str) -> None:
    assert not is_here(name)


def test_an_address_is_own_or_another_ones() -> None:
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.7")


def test_the_address_that_a_jump_host_shows_is_not_ours() -> None:
    assert own_address(["", "192.0.2.7", "127.0.0.1"]) == own_address([])
