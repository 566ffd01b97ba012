"""The doors of frameworks that have an environment of their own: `make doors-test` runs what is here in it.

A test file whose framework is not installed is left out: test_<framework>*.py.
"""

from importlib.util import find_spec
from pathlib import Path

FRAMEWORKS = ("tensorflow", "keras", "jax", "mxnet")

collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_*.py")
    for framework in FRAMEWORKS
    if path.stem.startswith(f"test_{framework}") and find_spec(framework) is None
]
