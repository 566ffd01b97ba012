"""One rank of a job that runs tests of Horovod's own, to which ``import horovod`` is Shoal's door (run.py starts it):

    python rank.py CHECKOUT RESULTS FILE [TEST ...]

Appends a line of JSON to RESULTS.<rank> before and after each test. Of the checkout only the test and two helpers of the tests
are used; ``mock``, which those want, is Python's own.
"""

import importlib.util
import json
import os
import sys
import unittest.mock
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.horovod import aliases

# What Horovod itself puts into the environment of its ranks; the tests then leave the job after each test.
for ours, theirs in (("RANK", "HOROVOD_RANK"), ("WORLD_SIZE", "HOROVOD_SIZE")):
    os.environ[theirs] = os.environ[ours]

# They want horovod.tensorflow, and use nothing of it but process sets, which are the same with any framework.
OF_PROCESS_SETS = ("test_process_sets_static.py", "test_process_sets_multi_comm.py")

# Horovod has Adasum over MPI alone, so these ask whether there is MPI. They ask for Adasum.
OF_ADASUM = ("test_adasum_pytorch.py",)


class Report:
    """A plugin of pytest's."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Horovod skips one of its tests, since it fails there now and then; it is to run here."""
        for item in items:
            if item.name == "test_timeline_api":
                item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, "began", "")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", report.longreprtext[-3000:])
        elif report.skipped:
            self._write(report.nodeid, "skipped", str(report.longrepr[2]).removeprefix("Skipped: "))
        elif report.when == "call":
            self._write(report.nodeid, "passed", "")

    def _write(self, nodeid: str, outcome: str, why: str) -> None:
        self._file.write(json.dumps({"test": nodeid.rpartition("::")[2], "outcome": outcome, "why": why}) + "\n")


def prepare(checkout: Path, file: str) -> None:
    aliases.install()
    sys.modules["mock"] = unittest.mock
    for name in ("horovod.runner", "horovod.runner.util"):
        sys.modules[name] = ModuleType(name)
    path = checkout / "horovod" / "runner" / "util" / "threads.py"
    spec = importlib.util.spec_from_file_location("horovod.runner.util.threads", path)
    assert spec is not None
    assert spec.loader is not None
    threads = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(threads)
    sys.modules[spec.name] = threads
    import shoal.horovod
    import shoal.horovod.torch as door

    if file in OF_PROCESS_SETS:
        sys.modules["horovod.tensorflow"] = shoal.horovod.tensorflow = door  # type: ignore[attr-defined]
    if file in OF_ADASUM:
        door.mpi_enabled = lambda: True  # type: ignore[attr-defined]


def main() -> int:
    checkout, results, file, *tests = sys.argv[1:]
    prepare(Path(checkout), file)
    path = Path(checkout) / "test" / "parallel" / file
    kind = {"test_torch.py": "TorchTests", "test_adasum_pytorch.py": "TorchAdasumTests"}.get(file, "")
    chosen = [f"{path}::{kind}::{test}" for test in tests] if tests and kind else [str(path)]
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(path.parent)]
    pytest.main([*options, *chosen], plugins=[Report(Path(f"{results}.{os.environ['RANK']}"))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
