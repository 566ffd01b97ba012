"""Shoal's package, built once, with several versions of TensorFlow, and the table in docs/tensorflow.md that says what came of it.

    python tests/compat/run_tensorflow.py [VERSION ...]

For each version an environment of its own in build/compat, with all tests of TensorFlow's door. It is deleted after use unless it was
there before. What is known of other versions stays in the table.
"""

import datetime
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from run import BUILD, ROOT, Part, build, commit_of, run_tests

VERSIONS = ["2.21.0", "2.16.2", "2.15.1"]
PAGE = ROOT / "docs" / "tensorflow.md"
TESTS = [f"tests/doors/test_tensorflow{part}.py" for part in ("", "_ends", "_horovod", "_example")]
PACKAGES = ["pytest", "scikit-learn"]
HEAD = "| TensorFlow | Python | date | Shoal | tests |"


def main() -> None:
    wheel = build()
    failed = False
    for version in sys.argv[1:] or VERSIONS:
        part = _tried(version, wheel)
        count = part.passed + len(part.failed)
        text = f"{part.passed} of {count}; not: {', '.join(part.failed)}" if part.failed else f"all {count}"
        today = datetime.date.today().isoformat()
        _put(version, f"| {version} | {platform.python_version()} | {today} | {commit_of('tests/doors')} | {text} |")
        failed = failed or bool(part.failed)
    if failed:
        sys.exit("what failed is in build/compat/VERSION-tensorflow.txt")


def _tried(version: str, wheel: Path) -> Part:
    environment = BUILD / f"tensorflow-{version}"
    python = environment / "bin" / "python"
    kept = python.exists()
    try:
        if not kept:
            venv.create(environment, with_pip=True, symlinks=True)
            install = [python, "-m", "pip", "install", "-q", "--no-cache-dir"]
            subprocess.run([*install, f"tensorflow-cpu=={version}", "click", *PACKAGES], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel], check=True)
        return run_tests(python, version, "tensorflow", TESTS)
    finally:
        if not kept:
            shutil.rmtree(environment, ignore_errors=True)


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
