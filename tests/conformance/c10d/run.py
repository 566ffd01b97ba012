"""Runs PyTorch's own tests of ``torch.distributed`` on a backend:

    python tests/conformance/c10d/run.py shoal -n 2 --gpu-tests
    python tests/conformance/c10d/run.py gloo -n 8

Prints a line for each test and what came of all; the exit status is 0 if none has failed.
"""

import argparse
import importlib
import json
import logging
import multiprocessing
import os
import re
import sys
import tempfile
import time
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from left_out import FOR_THE_NAME, NOT_ON_CPU  # noqa: E402
from suite_settings import Settings  # noqa: E402

BAD = ("failed", "hung")


class Report(unittest.TestResult):
    """Prints what comes of each test, and keeps it in ``rows``."""

    def __init__(self, out: TextIO, total: int) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._out = out
        self._total = total

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._began = time.monotonic()
        self._status, self._why, self._detail = "passed", "", ""

    def addSkip(self, test: Any, reason: str) -> None:
        self._status, self._why = "skipped", str(reason)

    def addFailure(self, test: Any, err: Any) -> None:
        self._detail = self._exc_info_to_string(err, test)
        lines = [line.strip() for line in self._detail.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)]
        self._why = (errors or lines)[-1][:300]
        self._status = "hung" if re.search(r"timed out after|exit code None", self._why) else "failed"

    addError = addFailure

    def stopTest(self, test: Any) -> None:
        name, seconds = _name(test), time.monotonic() - self._began
        self.rows.append(
            {
                "test": name,
                "status": self._status,
                "seconds": round(seconds, 1),
                "why": self._why,
                "detail": self._detail,
            }
        )
        why = f"  {self._why}" if self._why else ""
        print(
            f"{len(self.rows):3}/{self._total} {self._status:7} {seconds:5.1f} s  {name}{why}",
            file=self._out,
            flush=True,
        )


def main() -> int:
    given = _arguments()
    log = given.log or Path(tempfile.gettempdir()) / f"c10d-{given.backend}.log"
    log.write_text("")
    settings = Settings(given.backend, given.world_size, given.gpu_tests, given.unskip, str(log), given.group_seconds)
    _prepare_environment(settings, given.seconds)
    suite = importlib.import_module("pytorch_suite")
    multiprocessing.set_forkserver_preload(["pytorch_suite"])
    logging.getLogger("torch.testing._internal.common_distributed").setLevel(logging.CRITICAL)
    left_out = _left_out(settings)
    tests = [
        test
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(suite.Suite)
        if _name(test) not in left_out and re.search(given.only, _name(test))
    ]
    out = sys.stdout
    report = Report(out, len(tests))
    with log.open("a", buffering=1) as sys.stdout:  # what the suite prints itself
        unittest.TestSuite(tests).run(report)
    sys.stdout = out
    _summarise(report, left_out, settings, log)
    if given.json:
        given.json.write_text(
            json.dumps({"settings": vars(settings), "left_out": left_out, "tests": report.rows}, indent=1)
        )
    return 1 if any(row["status"] in BAD for row in report.rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", choices=["gloo", "shoal"])
    parser.add_argument("-n", dest="world_size", type=int, default=2, help="ranks (2)")
    parser.add_argument("-k", dest="only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--gpu-tests", action="store_true", help="also those for GPUs, on CPU tensors")
    parser.add_argument(
        "--unskip", default="", metavar="REGEX", help="also those that are skipped for a reason that matches"
    )
    parser.add_argument("--seconds", type=int, default=60, help="the most that a test may take (60)")
    parser.add_argument("--group-seconds", type=int, default=30, help="timeout of process groups (30)")
    parser.add_argument("--json", type=Path, help="where to write what came of each test")
    parser.add_argument("--log", type=Path, help="where the processes of tests write")
    return parser.parse_args()


def _prepare_environment(settings: Settings, seconds: int) -> None:
    settings.publish()
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(seconds)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PYTHONWARNINGS"] = "ignore"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.simplefilter("ignore")


def _left_out(settings: Settings) -> dict[str, str]:
    """Test → why."""
    for_the_name = {} if settings.backend == "gloo" else FOR_THE_NAME
    return {**for_the_name, **(NOT_ON_CPU if settings.gpu_tests else {})}


def _summarise(report: Report, left_out: dict[str, str], settings: Settings, log: Path) -> None:
    counts = Counter(row["status"] for row in report.rows)
    reasons = Counter(row["why"] for row in report.rows if row["status"] == "skipped")
    for why, count in reasons.most_common():
        print(f"skipped {count:3}: {why}")
    for why, count in Counter(left_out.values()).most_common():
        print(f"left out {count:2}: {why}")
    for row in report.rows:
        if row["status"] in BAD:
            print(f"{row['status']}: {row['test']}: {row['why']}")
    print(
        f"{settings.backend}, {settings.world_size} ranks: {counts['passed']} passed, {counts['failed']} failed, "
        f"{counts['hung']} hung, {counts['skipped']} skipped, {len(left_out)} left out (processes wrote to {log})"
    )


def _name(test: Any) -> str:
    return str(test.id()).rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main())
