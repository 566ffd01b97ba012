"""Programs that were written for PyTorch's own backends do with "shoal" what they do with "gloo": one word is different."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"

# What is summed in another order differs in the last bits, and training makes more of it.
RELATIVE, ABSOLUTE = 1e-4, 1e-6

_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


# gloo's ranks end like this now and then when they have printed all, on a busy machine and with FSDP2.
RIVALS_END = "terminate called without an active exception"


def run(name: str, backend: str, ranks: int, *arguments: str, **variables: str) -> list[str]:
    """The lines that the script prints. As a user would run it; fails the test if it fails."""
    return printed(start(name, backend, ranks, *arguments, **variables))


def run_with_gloo(name: str, ranks: int) -> list[str]:
    """What is expected."""
    for _ in range(3):
        finished = start(name, "gloo", ranks)
        if RIVALS_END not in finished.stderr:
            break
    return printed(finished)


def printed(finished: subprocess.CompletedProcess[str]) -> list[str]:
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout
    return finished.stdout.splitlines()


def start(name: str, backend: str, ranks: int, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    script = [str(SCRIPTS / f"{name}.py"), "--backend", backend]
    options = ["--max-restarts", "1"] if "--kill" in arguments else []
    return subprocess.run(
        [*command, *options, *script, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def assert_same(found: list[str], expected: list[str]) -> None:
    """Word for word; numbers with a fraction to within the tolerance."""
    for line, other in itertools.zip_longest(found, expected, fillvalue=""):
        assert _NUMBER.sub("#", line) == _NUMBER.sub("#", other)
        ours, theirs = ([float(number) for number in _NUMBER.findall(each)] for each in (line, other))
        assert ours == pytest.approx(theirs, rel=RELATIVE, abs=ABSOLUTE), (line, other)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("ddp", 2),
        ("objects", 3),
        ("checkpoint", 2),
        ("uneven_inputs", 3),
        ("fsdp", 2),
        ("distributed_checkpoint", 4),
        ("subgroups", 4),
        ("compiled", 2),
        ("fabric", 2),
    ],
)
def test_a_script_prints_the_same_with_shoal_as_with_gloo(name: str, ranks: int) -> None:
    assert_same(run(name, "shoal", ranks), run_with_gloo(name, ranks))


def test_a_job_goes_on_after_a_rank_was_killed(tmp_path: Path) -> None:
    disturbed = run("elastic", "shoal", 3, "--folder", str(tmp_path / "shoal"), "--kill", "7")
    assert "resumed from step 6" in disturbed
    undisturbed = run("elastic", "shoal", 3, "--folder", str(tmp_path / "undisturbed"))
    assert disturbed[-7:] == undisturbed[-7:]
    # gloo takes the addresses of the dead for those of the living, if both starts have one store.
    gloo = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    assert_same(disturbed, run("elastic", "gloo", 3, "--folder", str(tmp_path / "gloo"), "--kill", "7", **gloo))
