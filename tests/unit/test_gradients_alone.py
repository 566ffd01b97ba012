"""shoal.gradients knows no framework: its tests pass where none can be imported."""

import subprocess
import sys
from pathlib import Path

GRADIENTS = Path(__file__).parent / "gradients"

# pytest in a process in which none of these can be imported.
PROGRAM = """
import sys

FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "mxnet", "horovod"}


class Refuses:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in FRAMEWORKS:
            raise ImportError(f"no {name} here")


sys.meta_path.insert(0, Refuses())
import pytest

status = pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1]])
assert not FRAMEWORKS & sys.modules.keys()
sys.exit(status)
"""


def test_the_tests_of_gradients_need_no_framework() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, GRADIENTS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
