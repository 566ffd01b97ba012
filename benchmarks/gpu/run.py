"""Runs the stages of benchmarks/gpu on a machine with one GPU, where minutes are few, and keeps what came of each.

    benchmarks/gpu/run.sh [STAGE ...] [--seconds N] [--wheel FILE]
    benchmarks/gpu/run.sh --rehearse [STAGE ...]
    benchmarks/gpu/run.sh --keep FOLDER ...     results of several runs, each in its $OUT, into benchmarks/gpu/results

"first" stands for what has to be known before anything else counts, and is meant for 150 s; "rest" for all others, in
the order of need. Every stage has a process group and a time limit of its own, and is over with all that it has
started when the next begins; one that fails stops nothing. After each, the folder of results has

    summary.txt     for people: which stages have passed, failed, were cut off or not run, and what they say
    results.json    the same, with every figure
    log.txt         what the stages printed
    timeline.png    a step, where matplotlib is

Stages run with Shoal as the stage "install" has installed it, in build/gpu/venv; where that is missing, it comes first.

--rehearse: no GPU, small sizes, few rounds, a simulated device. It shows that the stages work, and nothing else: the
results are marked, and lie in build/gpu/rehearsal. The exit code is 0 if all stages that were asked for have passed.
"""

import argparse
import ctypes
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stage as stages_of

ROOT = stages_of.ROOT
KEPT = ROOT / "benchmarks/gpu/results"
REHEARSED = ROOT / "build/gpu/rehearsal"
VENV_PYTHON = ROOT / "build/gpu/venv/bin/python"
FORMAT = 1
# A rehearsal is about whether it works, on a machine that may be slow.
PATIENCE_OF_REHEARSAL = 6

PASSED, FAILED, CUT_OFF, NOT_RUN = "passed", "FAILED", "CUT OFF", "NOT RUN"

HEAD = """\
One GPU, one machine. What that cannot show: NVLink and NCCL between GPUs; several GPUs that copy to the memory of one
host at once; real network cards and links. Nodes are processes of this machine, which talk over its loopback interface,
so what the network takes here is processors' time, shared with everything else."""
REHEARSAL_HEAD = """\
REHEARSAL: no GPU, a simulated device, small sizes, few rounds. No figure here says anything about GPUs or speed."""


@dataclass(frozen=True)
class Stage:
    """``program``: a file here and its arguments, or what Python runs, where it begins with "-". ``seconds``: its
    limit. ``own``: runs with the Python that has Shoal. ``shows``: for --help. ``unrehearsed``: what no rehearsal can show.
    """

    name: str
    seconds: int
    program: tuple[str, ...]
    shows: str
    own: bool = True
    unrehearsed: str = ""


_PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-v", "-rfEs", "--durations", "3", "-m", "not slow")

STAGES = [
    Stage("facts", 20, ("facts.py",), "the GPU, the processors, versions", own=False),
    Stage("install", 90, ("install.py",), "the wheel that is given, else it is built here", own=False),
    Stage(
        "tests",
        75,
        (*_PYTEST, "tests/jobs/test_cuda.py"),
        "operations and training on CUDA tensors, order in streams",
        unrehearsed="what waits for streams of a CUDA device is skipped",
    ),
    Stage(
        "stress",
        75,
        ("stress.py",),
        "late gradients on three streams, NaN wherever nothing should be read: one process's parameters, the same bits "
        "in two runs",
        unrehearsed="torch.cuda._sleep, streams of PyTorch's, its allocator",
    ),
    Stage("copies", 45, ("copies.py",), "copies of 1 to 100 MB, and the latency of a gate"),
    Stage(
        "steps",
        170,
        ("steps.py",),
        "step times and how long the host is blocked, beside DDP on gloo and no averaging",
        unrehearsed="bf16 on tensor cores; copies that overlap with kernels",
    ),
    Stage(
        "profile",
        80,
        ("profiled.py",),
        "the copies' share inside the backward pass, the gap before the optimizer, a timeline",
        unrehearsed="the profiler's records of kernels and copies: the reader of traces has a unit test",
    ),
    Stage("mps", 110, ("mps.py",), "two ranks on the GPU, under MPS", unrehearsed="MPS itself"),
    Stage("engine", 90, ("engine.py",), "100 MB over loopback, pinned to processors: Gbit/s"),
    Stage("latency", 75, ("latency.py",), "8 B to 64 KiB, a core a rank, beside gloo"),
    Stage("hsdp", 60, ("hsdp.py",), "examples/hsdp.py, 2 × 2", unrehearsed="NCCL inside the nodes"),
    Stage("c10d", 90, (*_PYTEST, "tests/jobs/test_c10d.py"), "the backend's tests on the CPU, with this PyTorch"),
]
NAMES = [each.name for each in STAGES]
GROUPS = {"first": NAMES[:4], "rest": NAMES[4:], "all": NAMES}


class Results:
    """``results.json`` and what is made of it. What was there of other stages stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "results.json"
        found = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.stages: dict[str, Any] = found.get("stages", {}) if found.get("format") == FORMAT else {}

    def take(self, name: str, entry: dict[str, Any]) -> None:
        self.stages[name] = entry
        self.stages = {known: self.stages[known] for known in NAMES if known in self.stages}
        lines = [f"{json.dumps(known)}: {json.dumps(found)}" for known, found in self.stages.items()]
        self._path.write_text(f'{{"format": {FORMAT}, "stages": {{\n' + ",\n".join(lines) + "\n}}\n")
        (self.folder / "summary.txt").write_text("\n".join(self.summary()) + "\n")

    def summary(self) -> list[str]:
        lines = HEAD.splitlines()
        if any(entry["rehearsal"] for entry in self.stages.values()):
            lines = REHEARSAL_HEAD.splitlines()
        for known in STAGES:
            entry = self.stages.get(known.name)
            lines.append("")
            if entry is None:
                lines.append(f"{known.name}: {NOT_RUN}")
                continue
            lines.append(f"{known.name}: {entry['outcome']} ({entry['seconds']:.0f} s, {entry['date']})")
            lines += [f"    {line}" for line in entry["lines"]]
            if entry["rehearsal"] and known.unrehearsed:
                lines.append(f"    not rehearsed: {known.unrehearsed}")
            lines += [f"    | {line}" for line in entry["last_words"]]
        return lines


def run_stage(which: Stage, results: Results, seconds: float, rehearses: bool, arguments: Sequence[str]) -> str:
    """Runs it for so long at most. What came of it, which is in the results too."""
    python = str(VENV_PYTHON) if which.own and VENV_PYTHON.exists() and not rehearses else sys.executable
    first, *others = which.program
    command = [python, *which.program] if first.startswith("-") else [python, f"benchmarks/gpu/{first}", *others]
    with tempfile.TemporaryDirectory(prefix="shoal-gpu-") as folder:
        record, printed = Path(folder, "record.json"), Path(folder, "printed.txt")
        environment = {**os.environ, stages_of.RECORD: str(record), stages_of.WORK: folder, "PYTHONUNBUFFERED": "1"}
        environment["PATH"] = f"{Path(python).parent}:{os.environ.get('PATH', '')}"
        if rehearses:
            environment |= {stages_of.REHEARSAL: "1", "CUDA_TESTS_REHEARSAL": "1"}
        begun = time.monotonic()
        with printed.open("wb") as output:
            status = _run([*command, *arguments], environment, seconds, output)
        taken = time.monotonic() - begun
        found = json.loads(record.read_text()) if record.exists() else {"lines": [], "data": {}}
        text = printed.read_text(errors="replace")
        for figure in Path(folder).glob("*.png"):
            (results.folder / figure.name).write_bytes(figure.read_bytes())
    outcome = PASSED if status == 0 else f"{CUT_OFF} after {seconds:.0f} s" if status is None else f"{FAILED}: {status}"
    entry = {
        "outcome": outcome,
        "seconds": round(taken, 1),
        "date": _now(),
        "rehearsal": rehearses,
        "lines": found["lines"] or _lines_of_tests(text),
        "data": found["data"],
        "last_words": [] if status == 0 else text.strip().splitlines()[-15:],
    }
    with (results.folder / "log.txt").open("a") as log:
        mark = " (rehearsal)" if rehearses else ""
        log.write(f"\n===== {which.name}{mark}, {entry['date']}: {outcome}\n{text}")
    results.take(which.name, entry)
    print(f"{which.name}: {outcome} ({taken:.0f} s)", flush=True)
    for line in [*entry["lines"], *entry["last_words"]]:
        print(f"    {line}", flush=True)
    return outcome


def _run(command: Sequence[str], environment: dict[str, str], seconds: float, output: Any) -> int | None:
    """Its exit status, None if it was cut off. Nothing of its process group is left."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        _signal(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
        return None
    finally:
        _signal(process.pid, signal.SIGKILL)
        process.wait()


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _lines_of_tests(text: str) -> list[str]:
    """Pytest's last line, and what has failed."""
    lines = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
    counts = [
        line.strip("= ") for line in text.splitlines() if " in " in line and ("passed" in line or "failed" in line)
    ]
    return [*lines[:12], *counts[-1:]]


def has_gpu() -> bool:
    """Whether CUDA's driver library finds one."""
    count = ctypes.c_int(0)
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return library.cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def keep(folders: Sequence[Path]) -> None:
    """Puts the results of several runs together; of a stage that ran in several, the last."""
    results = Results(KEPT)
    for folder in folders:
        given = Results(folder)
        if any(entry["rehearsal"] for entry in given.stages.values()):
            sys.exit(f"{folder} has results of a rehearsal: they are not for keeping")
        for name, entry in given.stages.items():
            results.take(name, entry)
        with (KEPT / "log.txt").open("a") as log:
            log.write((folder / "log.txt").read_text())
        for figure in folder.glob("*.png"):
            (KEPT / figure.name).write_bytes(figure.read_bytes())


def main() -> int:
    about = "\n".join(f"    {each.name:8} {each.seconds:4} s  {each.shows}" for each in STAGES)
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nStages and their limits:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stages", nargs="*", default=["all"], metavar="STAGE")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all together; what does not fit is not run")
    parser.add_argument("--wheel", help="what to install; default: one in dist/ that fits, else built here")
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.keep:
        keep(given.keep)
        return 0
    unknown = set(given.stages) - {*NAMES, *GROUPS}
    if unknown:
        parser.error(f"no stage is called {unknown.pop()!r}: {', '.join([*NAMES, *GROUPS])}")
    wanted = [name for asked in given.stages for name in GROUPS.get(asked, [asked])]
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else REHEARSED if given.rehearse else KEPT
    if given.rehearse and folder.resolve() == KEPT:
        parser.error("a rehearsal is not for keeping: let OUT be another folder")
    if not given.rehearse and not has_gpu():
        parser.error("there is no GPU here: --rehearse runs the same steps without one")
    results = Results(folder)
    if any(entry["rehearsal"] != given.rehearse for entry in results.stages.values()):
        parser.error(f"{folder} has results of the other kind: rehearsals and real runs do not go together")
    if not given.rehearse and "install" not in wanted and not VENV_PYTHON.exists():
        wanted.insert(0, "install")
    deadline = time.monotonic() + given.seconds * (PATIENCE_OF_REHEARSAL if given.rehearse else 1)
    has_failed = False
    for which in (each for name in wanted for each in STAGES if each.name == name):
        seconds = which.seconds * (PATIENCE_OF_REHEARSAL if given.rehearse else 1)
        left = deadline - time.monotonic()
        if left <= 5:
            print(f"{which.name}: {NOT_RUN}: no time left", flush=True)
            has_failed = True
            continue
        arguments = ["--wheel", given.wheel] if which.name == "install" and given.wheel else []
        outcome = run_stage(which, results, min(seconds, left), given.rehearse, arguments)
        has_failed = has_failed or outcome != PASSED
    print(f"results: {folder}", flush=True)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
