"""Installs Shoal into build/gpu/venv, which sees everything that this Python has: a wheel, or what is built here of
this checkout.

    python benchmarks/gpu/install.py [--wheel FILE]

Nothing is fetched: to build, this Python has scikit-build-core, nanobind, cmake and ninja. A rehearsal uses Shoal as
this Python has it, unless a wheel is given.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import stage

VENV = stage.ROOT / "build/gpu/venv"
PYTHON = VENV / "bin/python"
SAYS = (
    "import shoal, shoal._native, shoal.torch, torch;"
    "print(shoal._native.__version__, 'in', shoal.__path__[0], 'with torch', torch.__version__)"
)


def call(command: Sequence[object], **environment: str) -> bool:
    words = list(map(str, command))
    print("$", *words, flush=True)
    return subprocess.run(words, env={**os.environ, **environment}, check=False).returncode == 0


def make_venv(venv: Path, python: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", "--clear", venv], check=True
    )
    # A virtual environment made in another one sees the system's packages, not the other's.
    if sys.prefix != sys.base_prefix:
        packages = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        # All that this Python finds: what a file there points to would not be followed once more.
        seen = [entry for entry in sys.path if entry.endswith("-packages")]
        Path(packages, "zz_parent.pth").write_text("".join(f"{entry}\n" for entry in seen))


def install(wheels: Sequence[Path], python: Path) -> str:
    """How it was installed; empty if it was not."""
    pip: list[object] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install"]
    pip += ["--no-deps", "--no-index", "--force-reinstall"]
    for wheel in wheels:
        if call([*pip, wheel]):
            return f"the wheel {wheel.name}"
    with_tools = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    jobs = str(len(os.sched_getaffinity(0)))
    if call([*pip, "--no-build-isolation", stage.ROOT], PATH=with_tools, CMAKE_BUILD_PARALLEL_LEVEL=jobs):
        return "built here"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--wheel", type=Path)
    given = parser.parse_args()
    record = stage.Record()
    begun = time.monotonic()
    rehearses_only = stage.rehearses() and given.wheel is None
    # A rehearsal leaves what real runs use alone.
    venv = stage.work_folder() / "venv" if stage.rehearses() else VENV
    python = Path(sys.executable) if rehearses_only else venv / "bin/python"
    if rehearses_only:
        how = "what this Python has; nothing was installed"
    else:
        make_venv(venv, python)
        here = [given.wheel] if given.wheel else sorted((stage.ROOT / "dist").glob("*.whl"))
        how = install(here, python)
        if not how:
            shutil.rmtree(venv)  # so that the next stage does not take it for whole
            record.say("neither a wheel fits nor can it be built here")
            return 1
    told = subprocess.run([python, "-c", SAYS], cwd="/", capture_output=True, text=True, check=False)
    print(told.stdout, told.stderr)
    record.keep("how", how)
    record.say(f"{how}, in {time.monotonic() - begun:.0f} s: {told.stdout.strip() or told.stderr.strip()[-300:]}")
    return told.returncode


if __name__ == "__main__":
    sys.exit(main())
