"""Builds Shoal's wheels for Linux into dist/: cp310, cp311, and cp312-abi3 for all newer Pythons, each for x86_64 and aarch64.

    python packaging/wheels.py [--python 3.11 ...] [x86_64] [aarch64]

Run by make wheels. A wheel is made for each of those Pythons that is on this machine, and tagged manylinux_2_28: auditwheel
has checked it for that, abi3audit that the wheel for all newer Pythons uses nothing but the stable ABI. The core is
built once for an architecture, the Python module over it once for each wheel.

A wheel for aarch64 is made on x86_64 with the headers of this machine's Python: pyconfig.h says the same of both processors
as far as an extension sees it (sizes of types, byte order).
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pythons
from toolchain import ARCHITECTURES, GLIBC, Toolchain

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
STABLE_ABI_SINCE = 12  # Python 3.12: nanobind's stable ABI begins there
POLICY = f"manylinux_{GLIBC.replace('.', '_')}"
TOOLS = Path(sys.executable).parent  # the programs of the environment that this runs in

# auditwheel's program, told the processor: it takes the tags of the machine at hand alone, but can audit for any.
AUDITWHEEL = (
    "import platform, sys; processor = sys.argv.pop(1); platform.machine = lambda: processor; "
    "from auditwheel.main import main; sys.exit(main())"
)


def run(*command: str | Path, **environment: str) -> None:
    print("+", *command, flush=True)
    path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "PATH": path, **environment})


def build_core(toolchain: Toolchain, tests: Iterable[str] = ()) -> Path:
    """The core's static library; `tests` are native tests to build as well."""
    folder = BUILD / toolchain.architecture / "core"
    run(
        "cmake", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}", "-S", ROOT, "-B", folder,
        "-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={toolchain.architecture}",
        "-DSHOAL_PYTHON=OFF", f"-DSHOAL_TESTS={'ON' if tests else 'OFF'}", *toolchain.cmake_arguments(),
    )  # fmt: skip
    run("cmake", "--build", folder, "--target", "shoal_core", *tests)
    return folder / "libshoal_core.a"


def environment_of(python: Path, minor: int) -> Path:
    """The interpreter of an environment with what a build needs, for one version of Python."""
    folder = BUILD / f"python3.{minor}"
    inside = folder / "bin" / "python"
    if not (folder / ".made").exists():
        run(python, "-m", "venv", "--clear", folder)
        pip = (inside, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", "constraints.txt")
        run(*pip, "--upgrade", "pip")
        run(*pip, "scikit-build-core", "nanobind")
        (folder / ".made").touch()
    return inside


def build_wheel(toolchain: Toolchain, core: Path, python: Path, minor: int) -> Path:
    """One wheel, as its Python and architecture call for, not yet audited."""
    architecture = toolchain.architecture
    made = BUILD / architecture / f"made-3.{minor}"
    shutil.rmtree(made, ignore_errors=True)
    settings = [f"cmake.define.SHOAL_CORE={core}", f"build-dir={BUILD / architecture / f'module-3.{minor}'}"]
    settings.append("install.strip=false")  # Zig's linker has done so, and strip is for the processor at hand
    for argument in toolchain.cmake_arguments():
        name, _, value = argument.removeprefix("-D").partition("=")
        settings.append(f"cmake.define.{name}={value}")
    run(
        environment_of(python, minor), "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps",
        "--no-build-isolation", "-w", made, *(f"-C{setting}" for setting in settings), ".",
        # What the build would otherwise say of the machine it runs on.
        _PYTHON_HOST_PLATFORM=f"linux-{architecture}",
        SETUPTOOLS_EXT_SUFFIX=f".cpython-3{minor}-{architecture}-linux-gnu.so",
    )  # fmt: skip
    (wheel,) = made.glob("*.whl")
    return wheel


def audit(wheel: Path, architecture: str) -> None:
    """Puts the wheel into dist/ under the name that says where it runs, once that is shown to be so."""
    platform = f"{POLICY}_{architecture}"
    run(
        sys.executable, "-c", AUDITWHEEL, architecture, "repair", "--only-plat", "--plat", platform, "-w", DIST, wheel
    )  # fmt: skip
    python, abi, _ = wheel.stem.split("-")[2:]
    (audited,) = DIST.glob(f"*-{python}-{abi}-{platform}.whl")
    if abi == "abi3":
        run("abi3audit", "--strict", "--summary", audited)


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds Shoal's wheels for Linux into dist/.")
    parser.add_argument("--python", action="append", help="only for this version of Python, such as 3.11")
    parser.add_argument("architectures", nargs="*", choices=[*ARCHITECTURES, []], help="default: all")
    arguments = parser.parse_args()
    here = pythons.find()
    wanted = {int(version.removeprefix("3.")) for version in arguments.python or []} or set(here)
    newer = sorted(minor for minor in wanted & set(here) if minor >= STABLE_ABI_SINCE)
    minors = sorted(minor for minor in wanted & set(here) if minor < STABLE_ABI_SINCE) + newer[:1]
    if not minors:
        raise SystemExit(f"none of the wanted Pythons is here; found: {', '.join(f'3.{minor}' for minor in here)}")
    DIST.mkdir(exist_ok=True)
    for architecture in arguments.architectures or ARCHITECTURES:
        toolchain = Toolchain(architecture, BUILD / architecture / "toolchain")
        core = build_core(toolchain)
        for minor in minors:
            audit(build_wheel(toolchain, core, here[minor], minor), architecture)
    for wheel in sorted(DIST.glob("*.whl")):
        print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
