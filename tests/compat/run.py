"""Shoal with each of PyTorch's versions, one after the other, and docs/versions.md, which says what came of it.

    python tests/compat/run.py [VERSION ...]

For each an environment of its own in build/compat, with that PyTorch from wherever pip is told to look and Shoal's built
package; its native part is built once, for all. Tests are real ones of the repository. The environment is deleted after use (the
builds of PyTorch for CUDA take about 5 GB), unless it was there before. What is known of other versions stays in the results.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "compat"
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs" / "versions.md"

# The last of each that is out. Where the backend is too old for it, it has to say so.
VERSIONS = [
    "2.15.0",
    "2.14.1",
    "2.13.0",
    "2.12.1",
    "2.11.0",
    "2.10.0",
    "2.9.1",
    "2.8.0",
    "2.7.1",
    "2.6.0",
    "2.5.1",
    "2.4.1",
]
OLDEST_OF_BACKEND = (2, 6)

PACKAGES = ["numpy", "click", "pytest", "hypothesis", "ml_dtypes", "expecttest"]

# Part → the tests in which it is shown.
DOORS = {
    "wrapper": [
        "tests/jobs/test_torch_gradients.py",
        "tests/jobs/test_torch_programs.py",  # beside PyTorch's own, with gloo
        "tests/jobs/test_torch_training.py::test_the_model_is_that_of_a_single_process",
    ],
    "hook": ["tests/jobs/test_comm_hook.py::test_two_ranks"],
}
BACKEND = {
    "backend": [
        "tests/unit/torch/test_versions.py",
        "tests/jobs/test_c10d_versions.py",  # functional, coalesced, 200 in flight, split_group
        "tests/jobs/test_c10d.py::test_every_collective_gives_what_it_should",
        "tests/jobs/test_c10d.py::test_groups_of_some_ranks_and_a_second_start_in_the_same_process",
        "tests/jobs/test_c10d.py::test_a_job_that_is_started_again_with_the_same_store",
        "tests/jobs/test_c10d.py::test_distributed_data_parallel_with_pytorchs_hooks",
        "tests/jobs/test_c10d.py::test_torchrun_and_no_import_of_shoal",
    ]
}
REFUSAL = {"backend": ["tests/compat/too_old.py"]}

# Seconds for all tests of one part.
LIMIT = 900


@dataclass
class Part:
    """``failed``: names of tests, with those that were not run."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)


class Outcome(NamedTuple):
    """Of a test. ``what``: passed, failed or skipped. ``why`` it was skipped."""

    test: str
    what: str
    why: str = ""


@dataclass
class Result:
    """``built_for``: the version of CUDA that this build of PyTorch is for, if any. ``commit``: the last that changed Shoal or its tests."""

    commit: str
    python: str
    built_for: str
    date: str
    parts: dict[str, Part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    versions = parser.parse_args().versions
    wheel = build()
    for version in versions:
        try:
            result = _tried(version, wheel)
        except subprocess.CalledProcessError as error:
            sys.exit(f"PyTorch {version} cannot be installed here: {error}")
        results = {**_results(), version: result}
        RESULTS.write_text(json.dumps({name: asdict(each) for name, each in results.items()}, indent=1) + "\n")
        PAGE.write_text(_page(results))
        print(_row(version, result), flush=True)
    if any(part.failed for version in versions for part in _results()[version].parts.values()):
        sys.exit("what failed is in build/compat/VERSION-PART.txt")


def build() -> Path:
    """Shoal's package."""
    folder = BUILD / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    options = ["--no-deps", "--no-build-isolation", "-C", f"build-dir={ROOT / 'build' / 'editable'}", "-w", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", *options, str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


def _tried(version: str, wheel: Path) -> Result:
    environment = BUILD / version
    python = environment / "bin" / "python"
    kept = python.exists()
    try:
        if not kept:
            venv.create(environment, with_pip=True, symlinks=True)
            install = [python, "-m", "pip", "install", "-q", "--no-cache-dir"]
            subprocess.run([*install, f"torch=={version}", *PACKAGES], check=True)
        install = [python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall"]
        subprocess.run([*install, wheel], check=True)
        facts = "import torch; print(torch.version.cuda or 'CPU')"
        built_for = subprocess.run([python, "-c", facts], check=True, capture_output=True, text=True).stdout.strip()
        subprocess.run([python, HERE / "torch_names.py", "--add", version], check=True)
        too_old = tuple(map(int, version.split(".")[:2])) < OLDEST_OF_BACKEND
        doors = {**DOORS, **(REFUSAL if too_old else BACKEND)}
        parts = {name: run_tests(python, version, name, tests) for name, tests in doors.items()}
    finally:
        if not kept:
            shutil.rmtree(environment, ignore_errors=True)
    return Result(
        commit_of("tests/jobs"), platform.python_version(), built_for, datetime.date.today().isoformat(), parts
    )


def commit_of(tests: str) -> str:
    """The last that changed Shoal or these tests."""
    command = ["git", "log", "-1", "--format=%h", "--", "src", "native", tests]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def run_tests(python: Path, version: str, name: str, tests: list[str]) -> Part:
    """What tests end in; one that is skipped was not run. What they write is in build/compat/VERSION-NAME.txt."""
    part = Part()
    for outcome in outcomes_of(python, version, name, tests):
        if outcome.what == "passed":
            part.passed += 1
        else:
            part.failed.append(outcome.test)
    return part


def outcomes_of(python: Path, version: str, name: str, tests: list[str], limit: int = LIMIT) -> list[Outcome]:
    """Of each test. If they are not all done within ``limit`` seconds: of that alone."""
    report, log = BUILD / f"{version}-{name}.xml", BUILD / f"{version}-{name}.txt"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
    # The environment's own commands, as torchrun, come first.
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    with log.open("w") as output:
        try:
            subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, timeout=limit, check=False, env=environment)
        except subprocess.TimeoutExpired:
            return [Outcome(f"{name}: not done within {limit} s", "failed")]
    if not report.exists():
        return [Outcome(f"{name}: pytest wrote no report", "failed")]
    return [_outcome(case) for case in ElementTree.parse(report).iter("testcase")]


def _outcome(case: ElementTree.Element) -> Outcome:
    skipped = case.find("skipped")
    if skipped is not None:
        return Outcome(str(case.get("name")), "skipped", str(skipped.get("message")))
    return Outcome(str(case.get("name")), "passed" if case.find("*[@message]") is None else "failed")


def _results() -> dict[str, Result]:
    if not RESULTS.exists():
        return {}
    found = json.loads(RESULTS.read_text())
    parts = {
        version: {name: Part(**part) for name, part in result.pop("parts").items()} for version, result in found.items()
    }
    results = {version: Result(**result, parts=parts[version]) for version, result in found.items()}
    return dict(sorted(results.items(), key=lambda item: [-int(part) for part in item[0].split(".")]))


def _row(version: str, result: Result) -> str:
    cells = [version, result.built_for, result.python, result.date, result.commit]
    for name, part in result.parts.items():
        all_tests = part.passed + len(part.failed)
        text = f"{part.passed} of {all_tests}" if part.failed else f"all {all_tests}"
        if name == "backend" and tuple(map(int, version.split(".")[:2])) < OLDEST_OF_BACKEND:
            text = "not there, and says so" if not part.failed else "not there, and does not say so"
        cells.append(text)
    return f"| {' | '.join(cells)} |"


def _page(results: dict[str, Result]) -> str:
    ordered = sorted(results, key=lambda version: [-int(part) for part in version.split(".")])
    lines = [
        "# Versions of PyTorch",
        "",
        'The backend "shoal" is for PyTorch 2.6 and later, the wrapper and the communication hook are for 2.4 and later.',
        "",
        "What `make compat` found: Shoal's package, with its native part built once, in an environment for each version. Written by",
        "`tests/compat/run.py`, which names the tests of each part: the wrapper (beside PyTorch's own on the same programs), the",
        "communication hook with gloo, and the backend (every collective, functional and coalesced ones, 200 in flight, PyTorch's own",
        'DistributedDataParallel, groups, `split_group`, a second start in the same process, torchrun). All ran on the CPU; "built for CUDA" is what the package of that version is made for.',
        "",
        "| PyTorch | built for CUDA | Python | date | Shoal | wrapper | hook | backend |",
        "|---|---|---|---|---|---|---|---|",
        *[_row(version, results[version]) for version in ordered],
        "",
    ]
    failed = [
        f"- {version}, {name}: {', '.join(part.failed)}"
        for version in ordered
        for name, part in results[version].parts.items()
        if part.failed
    ]
    if failed:
        lines += ["What failed:", "", *failed, ""]
    missing = [version for version in VERSIONS if version not in results]
    if missing:
        lines += [f"Not run yet: {', '.join(missing)}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
