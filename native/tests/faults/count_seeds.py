"""What the simulated network is worth: faults in the state machines, and how many schedules find each.

Every *.patch beside this file is a mistake that somebody could make, its first line says which. Each is applied alone to
a copy of the sources; random schedules run until one fails. Those in cuda/ are mistakes in what is asked of a CUDA
device, for cuda_test. Prints a table; the exit code is 1 if a fault is not found.

    python native/tests/faults/count_seeds.py --cmake "cmake -G Ninja" --build build/faults --seeds 200000
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def copy_sources(to: Path) -> None:
    """Makes `to` like the repository; files that have not changed keep their times, so that little is compiled again."""
    sources = [ROOT / "CMakeLists.txt", *(path for path in (ROOT / "native").rglob("*") if path.is_file())]
    wanted = {path.relative_to(ROOT) for path in sources}
    for path in wanted:
        target = to / path
        if not target.exists() or target.read_bytes() != (ROOT / path).read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target)
    for target in [path for path in (to / "native").rglob("*") if path.is_file()]:
        if target.relative_to(to) not in wanted:
            target.unlink()


def patch(source: Path, fault: Path, *options: str) -> None:
    done = subprocess.run(
        ["patch", "-p1", "--no-backup-if-mismatch", "-i", str(fault), *options],
        cwd=source,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"{fault.name} does not fit the sources any more: {done.stdout}{done.stderr}")


def seeds_needed(build: Path, first: int, most: int, jobs: int) -> tuple[int | None, str]:
    """How many schedules it took, and what the first that failed said."""
    command = [str(build / "shoal_simulate"), "--seed-from", str(first), "--seeds", str(most), "--until-failure"]
    output = subprocess.run([*command, "--jobs", str(jobs)], capture_output=True, text=True).stdout
    needed = re.search(r"first failure after (\d+) seeds", output)
    if needed is None:
        return None, ""
    seed = first + int(needed[1]) - 1
    said = re.search(rf"^seed {seed} FAILED: (.*)$", output, re.MULTILINE)
    return int(needed[1]), said[1] if said else ""


def found_by_test(build: Path) -> tuple[bool, str]:
    """Whether cuda_test fails, and what it says."""
    done = subprocess.run([str(build / "cuda_test")], capture_output=True, text=True, timeout=300)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "CHECK" in line]
    return done.returncode != 0, said[0].rpartition("/")[2] if said else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cmake", default="cmake", help="how CMake is called to configure")
    parser.add_argument("--build", type=Path, default=ROOT / "build/faults", help="where the copy is built")
    parser.add_argument("--seeds", type=int, default=200_000, help="schedules a fault, at most")
    parser.add_argument("--seed-from", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("faults", nargs="*", help="names of faults; default all")
    arguments = parser.parse_args()

    source, build = arguments.build.resolve() / "source", arguments.build.resolve() / "native"
    copy_sources(source)
    cmake = shlex.split(arguments.cmake)
    options = ["-DSHOAL_PYTHON=OFF", "-DSHOAL_TESTS=ON"]
    subprocess.run([*cmake, *options, "-S", str(source), "-B", str(build)], check=True, stdout=subprocess.DEVNULL)
    compile_it = [cmake[0], "--build", str(build), "-j", str(arguments.jobs), "--target"]

    missed = 0
    print("| fault | schedules until it was found | how it showed |\n|---|---|---|", flush=True)
    for fault in [*sorted(HERE.glob("*.patch")), *sorted((HERE / "cuda").glob("*.patch"))]:
        if arguments.faults and fault.stem not in arguments.faults:
            continue
        patch(source, fault)
        try:
            if fault.parent == HERE:
                subprocess.run([*compile_it, "shoal_simulate"], check=True, stdout=subprocess.DEVNULL)
                needed, said = seeds_needed(build, arguments.seed_from, arguments.seeds, arguments.jobs)
                is_found = needed is not None
                found = f"{needed:,}" if is_found else f"not in {arguments.seeds:,}"
            else:
                subprocess.run([*compile_it, "cuda_test"], check=True, stdout=subprocess.DEVNULL)
                is_found, said = found_by_test(build)
                found = "cuda_test" if is_found else "not by cuda_test"
        finally:
            patch(source, fault, "-R")
        missed += not is_found
        what = fault.read_text().splitlines()[0]
        print(f"| {fault.stem}: {what} | {found} | {said} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
