"""Shoal's package, built once, with several versions of TensorFlow, and the table in docs/tensorflow.md that says what came of it.

    python tests/compat/run_tensorflow.py [VERSION ...]

For each version an environment of its own in build/compat, with the newest Keras that it takes, and all tests of TensorFlow's
and Keras's doors. It is deleted after use unless it was there before. What a version cannot do, a test says itself, by being
skipped with the reason. What is known of other versions stays in the table.
"""

import datetime
import platform
import shutil
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path

from run import BUILD, ROOT, Outcome, build, commit_of, outcomes_of

VERSIONS = ["2.21.0", "2.16.2", "2.15.1"]
PAGE = ROOT / "docs" / "tensorflow.md"
DOORS = ROOT / "tests" / "doors"
PACKAGES = ["pytest", "scikit-learn"]
HEAD = "| TensorFlow | Keras | Python | date | Shoal | tests | left out |"

# Seconds for all tests of one file.
LIMIT = 1800


def main() -> None:
    wheel, commit = build(), commit_of("tests/doors")
    failed = False
    for version in sys.argv[1:] or VERSIONS:
        keras, outcomes = _tried(version, wheel)
        passed = sum(each.what == "passed" for each in outcomes)
        not_passed = [each.test for each in outcomes if each.what == "failed"]
        count = passed + len(not_passed)
        tests = f"{passed} of {count}; not: {', '.join(not_passed)}" if not_passed else f"all {count}"
        today = datetime.date.today().isoformat()
        cells = [version, keras, platform.python_version(), today, commit, tests, _left_out(outcomes)]
        _put(version, f"| {' | '.join(cells)} |")
        failed = failed or bool(not_passed)
    if failed:
        sys.exit("what failed is in build/compat/VERSION-FILE.txt")


def _tried(version: str, wheel: Path) -> tuple[str, list[Outcome]]:
    """The version of Keras, and what came of the tests."""
    environment = BUILD / f"tensorflow-{version}"
    python = environment / "bin" / "python"
    kept = python.exists()
    try:
        if not kept:
            venv.create(environment, with_pip=True, symlinks=True)
            install = [python, "-m", "pip", "install", "-q", "--no-cache-dir"]
            subprocess.run([*install, f"tensorflow-cpu=={version}", "click", *PACKAGES], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel], check=True)
        asked = "from importlib.metadata import version; print(version('keras'))"
        keras = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
        outcomes = []
        for file in sorted([*DOORS.glob("test_tensorflow*.py"), *DOORS.glob("test_keras*.py")]):
            found = outcomes_of(python, version, file.stem, [str(file.relative_to(ROOT))], LIMIT)
            print(version, file.stem, dict(Counter(each.what for each in found)), flush=True)
            outcomes += found
        return keras, outcomes
    finally:
        if not kept:
            shutil.rmtree(environment, ignore_errors=True)


def _left_out(outcomes: list[Outcome]) -> str:
    """How many tests were skipped for which reason."""
    reasons = Counter(each.why for each in outcomes if each.what == "skipped")
    return "; ".join(f"{count}: {why}" for why, count in reasons.most_common())


def _put(version: str, row: str) -> None:
    """Into the table, in the place of what it had of this version. The newest is first."""
    lines = PAGE.read_text().splitlines()
    first = lines.index(HEAD) + 2
    end = next(
        index for index in range(first, len(lines) + 1) if index == len(lines) or not lines[index].startswith("|")
    )
    rows = {line.split("|")[1].strip(): line for line in lines[first:end]}
    rows[version] = row
    newest_first = sorted(rows, key=lambda name: [-int(part) for part in name.split(".")])
    PAGE.write_text("\n".join([*lines[:first], *[rows[name] for name in newest_first], *lines[end:]]) + "\n")
    print(row, flush=True)


if __name__ == "__main__":
    main()
