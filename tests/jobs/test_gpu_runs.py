"""The run for a machine with a GPU (benchmarks/gpu), rehearsed without one: so that mistakes in it show here."""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "benchmarks/gpu/run.sh"


def rehearse(folder: Path, *stages: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the results."""
    environment = {**os.environ, "OUT": str(folder), "PYTHON": sys.executable}
    done = subprocess.run(
        [PROGRAM, "--rehearse", *stages], env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    print(done.stdout, done.stderr)
    return done.returncode, json.loads((folder / "results.json").read_text())["stages"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that runs stages."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks/gpu")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield importlib.import_module("run")
    for name in ("run", "stage"):
        sys.modules.pop(name, None)


def test_stages_that_need_no_ranks(tmp_path: Path) -> None:
    status, found = rehearse(tmp_path, "facts", "install", "copies")
    assert status == 0
    assert {name: entry["outcome"] for name, entry in found.items()} == dict.fromkeys(
        ("facts", "install", "copies"), "passed"
    )
    assert all(entry["rehearsal"] for entry in found.values())
    assert found["copies"]["data"]["latencies, seconds"]
    summary = (tmp_path / "summary.txt").read_text()
    assert summary.startswith("REHEARSAL")
    assert "stress: NOT RUN" in summary


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["stress", "steps", "profile", "mps", "engine", "latency", "hsdp"])
def test_stages_with_ranks(stage: str, tmp_path: Path) -> None:
    status, found = rehearse(tmp_path, stage)
    assert status == 0
    assert found[stage]["lines"]
    assert (tmp_path / "timeline.png").exists() == (stage == "profile")


def test_a_stage_that_fails_or_hangs_stops_nothing_and_leaves_nothing(run: ModuleType, tmp_path: Path) -> None:
    begins = (
        "import os, subprocess, sys, time, stage; record = stage.Record(); record.say('begun');"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "record.keep('child', child.pid)"
    )
    path = f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks/gpu')!r}); "
    results = run.Results(tmp_path)
    hangs = run.Stage("steps", 3, ("-c", f"{path}{begins}; time.sleep(60)"), "")
    fails = run.Stage("facts", 20, ("-c", f"{path}{begins}; print('why'); sys.exit(3)"), "")
    assert run.run_stage(hangs, results, 3, True, []) == "CUT OFF after 3 s"
    assert run.run_stage(fails, results, 20, True, []) == "FAILED: 3"
    found = json.loads((tmp_path / "results.json").read_text())["stages"]
    assert list(found) == ["facts", "steps"], "in the order of the stages"
    for entry in found.values():
        assert entry["lines"] == ["begun"]
        assert ends(entry["data"]["child"])
    assert "    | why" in (tmp_path / "summary.txt").read_text()


def ends(pid: int) -> bool:
    """Whether it does within some seconds: it takes a moment until a process that was killed is gone."""
    deadline = time.monotonic() + 10.0
    while is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_without_a_gpu_nothing_is_measured(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "has_gpu", lambda: False)
    monkeypatch.setenv("OUT", str(tmp_path / "results"))
    monkeypatch.setattr(sys, "argv", ["run.py", "facts"])
    with pytest.raises(SystemExit):
        run.main()
    assert "--rehearse" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_rehearsals_are_not_kept(run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "KEPT", tmp_path / "kept")
    entry = {"outcome": "passed", "seconds": 1, "date": "", "lines": [], "data": {}, "last_words": []}
    for name, rehearsal in (("facts", False), ("steps", True)):
        run.Results(tmp_path / name).take(name, {**entry, "rehearsal": rehearsal})
        (tmp_path / name / "log.txt").write_text(f"log of {name}\n")
    run.keep([tmp_path / "facts"])
    assert list(json.loads((tmp_path / "kept/results.json").read_text())["stages"]) == ["facts"]
    with pytest.raises(SystemExit, match="rehearsal"):
        run.keep([tmp_path / "steps"])
    monkeypatch.setenv("OUT", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "argv", ["run.py", "--rehearse", "facts"])
    with pytest.raises(SystemExit):
        run.main()
