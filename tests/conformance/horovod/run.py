"""Runs Horovod's own tests, of a checkout of its repository, on Shoal:

    git clone --branch v0.28.1 https://github.com/horovod/horovod horovod
    python tests/conformance/horovod/run.py --checkout horovod --ranks 2 3 4 [FILE ...]

All tests of a file run in one job first; those that have not passed there run once more, each in a job of its own, since
one failure upsets the next. Prints what came of each that did not pass, with the reason where it was to be expected
(expected.py), and the counts; the exit status is 0 if every other test has passed.
"""

import argparse
import concurrent.futures
import contextlib
import importlib.metadata
import importlib.util
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from shoal.testing import Cluster
from shoal.testing.cluster import TimeLimitReached

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from expected import EXPECTED, EXPECTED_WITH, EXPECTED_WITH_KERAS_3  # noqa: E402

FILES = (
    "test_torch.py",
    "test_adasum_pytorch.py",
    "test_process_sets_static.py",
    "test_process_sets_multi_comm.py",
    "test_timeline.py",
    "test_common.py",
)

# These want TensorFlow, which has an environment of its own: in it they run by default too.
OF_TENSORFLOW = (
    "test_tensorflow.py",
    "test_tensorflow_process_sets.py",
    "test_tensorflow_process_sets_dynamic.py",
    "test_adasum_tensorflow.py",
    "test_tensorflow2_keras.py",
    "test_tensorflow2_keras_process_sets.py",
    "test_tensorflow_keras.py",
    "test_keras.py",
    "test_xla.py",
)

# In gloo's way the tests leave the job after each test. An operation that nobody else calls is to fail soon.
ENVIRONMENT = {"SHOAL_TIMEOUT": "20", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

Outcomes = dict[str, tuple[str, str]]  # test → outcome, why


def main() -> int:
    given = _arguments()
    if not (given.checkout / "test" / "parallel").is_dir():
        sys.exit(f"{given.checkout} is no checkout of Horovod's repository: it has no folder test/parallel")
    lines, is_bad = [], False
    for ranks in given.ranks:
        for file in given.files or default_files():
            outcomes = run_file(given, file, ranks)
            summary, bad = summarise(file, ranks, outcomes)
            print("\n".join(summary), flush=True)
            lines += summary
            is_bad = is_bad or bad
    if given.output:
        given.output.write_text("\n".join(lines) + "\n")
    return 1 if is_bad else 0


def default_files() -> tuple[str, ...]:
    """Those that can run in this environment."""
    of_torch = FILES if importlib.util.find_spec("torch") else ()
    return of_torch + (OF_TENSORFLOW if importlib.util.find_spec("tensorflow") else ())


def run_file(given: argparse.Namespace, file: str, ranks: int) -> Outcomes:
    """What came of each test of a file."""
    known = set(re.findall(r"^ +def (test_\w+)\(self", (given.checkout / "test" / "parallel" / file).read_text(), re.M))
    wanted = sorted(test for test in known if re.search(given.only, test))
    outcomes = run_job(given, file, ranks, wanted, given.seconds)
    again = [test for test in wanted if outcomes.get(test, ("hung", ""))[0] not in ("passed", "skipped")]
    if len(wanted) > 1:
        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            for alone in pool.map(lambda test: run_job(given, file, ranks, [test], given.test_seconds), again):
                outcomes.update(alone)
    return {test: outcomes.get(test, ("hung", "")) for test in wanted}


def run_job(given: argparse.Namespace, file: str, ranks: int, tests: list[str], seconds: float) -> Outcomes:
    """What came of tests of a file in one job: the worst of what its ranks say."""
    checkout = str(given.checkout.resolve())
    with tempfile.TemporaryDirectory() as folder, Cluster(ranks, nodes=1, environment=ENVIRONMENT) as cluster:
        results = Path(folder) / "results"
        job = cluster.start_script(HERE / "rank.py", checkout, str(results), file, *tests)
        with contextlib.suppress(TimeLimitReached):
            job.wait(seconds)
        said = [_read(Path(f"{results}.{rank}")) for rank in range(ranks)]
        if given.verbose:
            print("\n".join(job.stdout(rank) + job.stderr(rank) for rank in range(ranks)))
    outcomes: Outcomes = {}
    for test in tests:
        of_ranks = [each.get(test, ("hung", "it did not begin on every rank")) for each in said]
        order = ("failed", "hung", "skipped", "passed")
        outcomes[test] = min(of_ranks, key=lambda outcome: order.index(outcome[0]))
    return outcomes


def _read(path: Path) -> Outcomes:
    found: Outcomes = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        outcome = "hung" if entry["outcome"] == "began" else entry["outcome"]
        # A failure in tearDown comes after the test has passed.
        if found.get(entry["test"], ("", ""))[0] != "failed":
            found[entry["test"]] = (outcome, entry["why"])
    return found


def summarise(file: str, ranks: int, outcomes: Outcomes) -> tuple[list[str], bool]:
    """Lines for a person, and whether a test has not passed that should have."""
    expected = {**EXPECTED.get(file, {}), **EXPECTED_WITH.get(ranks, {}).get(file, {})}
    if importlib.util.find_spec("keras") and not importlib.metadata.version("keras").startswith("2."):
        expected |= EXPECTED_WITH_KERAS_3.get(file, {})
    counts = Counter(outcome for outcome, _ in outcomes.values())
    told = ", ".join(
        f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "hung", "skipped") if counts[outcome]
    )
    lines, is_bad = [f"{file}, {ranks} ranks: {told}, of {len(outcomes)}"], False
    for reason, tests in _by_reason(expected, outcomes).items():
        lines.append(f"    {len(tests)}: {reason}: {', '.join(tests)}")
    for test, (outcome, why) in outcomes.items():
        if outcome != "passed" and test not in expected:
            is_bad = True
            lines.append(f"    NOT EXPECTED: {outcome}: {test}: {_last_line(why)}")
    return lines, is_bad


def _by_reason(expected: dict[str, str], outcomes: Outcomes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for test, (outcome, _) in outcomes.items():
        if outcome != "passed" and test in expected:
            found.setdefault(expected[test], []).append(test)
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
    return lines[-1][:300]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(FILES + OF_TENSORFLOW)} (all)")
    parser.add_argument("--checkout", type=Path, required=True, help="a checkout of Horovod's repository")
    parser.add_argument("--ranks", nargs="+", default=["2", "3", "4"], metavar="N", help="jobs of so many (2 3 4)")
    parser.add_argument("-k", dest="only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--jobs", type=int, default=2, help="jobs of one test at once (2)")
    parser.add_argument("--seconds", type=float, default=900, help="the most for all tests of a file (900)")
    parser.add_argument("--test-seconds", type=float, default=120, help="the most for a test in a job of its own (120)")
    parser.add_argument("--output", type=Path, help="where to write the summary too")
    parser.add_argument("--verbose", action="store_true", help="prints what ranks print")
    given = parser.parse_args()
    # What comes after the numbers belongs to them, as argparse has it.
    given.files += [word for word in given.ranks if not word.isdigit()]
    given.ranks = [int(word) for word in given.ranks if word.isdigit()]
    return given


if __name__ == "__main__":
    sys.exit(main())
