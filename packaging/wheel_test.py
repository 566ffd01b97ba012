"""Installs the wheels of dist/ into empty environments, and runs a job with each.

    python packaging/wheel_test.py [3.11 ...] [PATH ...]

Run by make wheel-test: with each Python that pythons.py finds, or with those that are named, by version or by path.
Each gets the wheel that is made for it, by pip, which finds no compiler and brings what the wheel says it needs: that
must be NumPy and click alone. Then two ranks on two nodes with one server average an array. Prints a line for each
environment; the first that fails ends it.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pythons
from wheels import DIST, ROOT, STABLE_ABI_SINCE

JOB = ROOT / "tests" / "jobs" / "sum_of_ranks.py"
ENVIRONMENTS = ROOT / "build" / "wheels" / "environments"
NEEDED = {"shoal", "numpy", "click"}
BROUGHT_BY_VENV = {"pip", "setuptools"}
INSTALL_SECONDS = 300  # a limit, most of it for a slow index
JOB_SECONDS = 120


def wheel_for(minor: int) -> Path:
    """The wheel in dist/ for this machine and Python 3.`minor`."""
    tags = f"cp3{minor}-cp3{minor}" if minor < STABLE_ABI_SINCE else f"cp3{STABLE_ABI_SINCE}-abi3"
    found = sorted(DIST.glob(f"shoal-*-{tags}-*_{platform.machine()}.whl"))
    if len(found) != 1:
        raise SystemExit(f"{len(found)} wheels for Python 3.{minor} ({tags}) in {DIST}, not one: make wheels")
    return found[0]


def try_one(python: Path) -> str:
    """What is said of one environment: the Python, the wheel, seconds and sizes."""
    found = pythons.version_of(python)
    if found is None:
        raise SystemExit(f"{python} does not run, or has no venv")
    minor = found[1]
    wheel = wheel_for(minor)
    folder = ENVIRONMENTS / str(python).strip("/").replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    inside = folder / "bin" / "python"
    # Nothing of this checkout, nor of the environment that this runs in, may be what is imported; no compiler is found.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SHOAL_"))}
    environment["PATH"] = str(inside.parent)
    pip: list[str | Path] = [inside, "-m", "pip", "--disable-pip-version-check"]
    install: list[str | Path] = [*pip, "install", "-q", "--only-binary", ":all:", "-c", ROOT / "constraints.txt"]
    start = time.monotonic()
    subprocess.run([*install, "--no-deps", wheel], env=environment, check=True, timeout=INSTALL_SECONDS)
    alone = time.monotonic() - start
    subprocess.run([*install, wheel], env=environment, check=True, timeout=INSTALL_SECONDS)
    whole = time.monotonic() - start
    listed = subprocess.run([*pip, "list", "--format", "json"], check=True, capture_output=True, text=True)
    packages = {package["name"].lower() for package in json.loads(listed.stdout)} - BROUGHT_BY_VENV
    if packages != NEEDED:
        raise SystemExit(f"{python}: {sorted(packages)} came with the wheel where {sorted(NEEDED)} should")
    (package,) = folder.glob("lib/python*/site-packages/shoal")
    size = sum(file.stat().st_size for file in package.rglob("*") if file.suffix != ".pyc")
    shoal: list[str | Path] = [folder / "bin" / "shoal", "run", "-n", "2", "--nodes", "2", "--servers", "1", JOB]
    ran = subprocess.run(
        shoal, cwd=folder, env=environment, capture_output=True, text=True, timeout=JOB_SECONDS, check=False
    )
    if ran.returncode != 0 or ran.stdout.count("the sum is 3") != 2:
        raise SystemExit(f"{python}: the job ended with {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return (
        f"{python}: {wheel.name} ({wheel.stat().st_size / 1e6:.2f} MB, {size / 1e6:.2f} MB installed) "
        f"in {alone:.1f} s, with NumPy and click {whole:.1f} s; the job ran"
    )


def main() -> None:
    here = {f"3.{minor}": python for minor, python in pythons.find().items()}
    for python in [here.get(name, Path(name)) for name in sys.argv[1:]] or here.values():
        print(try_one(python), flush=True)


if __name__ == "__main__":
    main()
