"""The folders of src/shoal, and that each imports only those above it.

Every import is read from the source: at the top of a module, inside functions, and for type checkers.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2] / "src" / "shoal"

# From the top down. What stands in one row is on one level: one framework each, and none of them imports another.
DOORS = ("torch", "tensorflow", "jax", "mxnet")
ROWS = (
    ("errors", "_native"),
    ("config",),
    ("net",),
    ("tuning",),
    ("assembly",),
    ("job",),
    ("ops",),
    # The names of `import shoal`.
    ("",),
    ("gradients",),
    ("server",),
    DOORS,
    # A framework that runs on several of those.
    ("keras",),
    # Another library's API for several of those frameworks.
    ("horovod",),
    ("processes",),
    ("testing",),
    ("bench",),
    ("cli",),
)
FRAMEWORKS = {*DOORS, "keras"}
LEVEL = {name: level for level, row in enumerate(ROWS) for name in row}

MOST_ENTRIES = 20
NOT_COUNTED = {"__init__.py", "__pycache__", "py.typed", "_native.pyi"}


class Import(NamedTuple):
    """``line`` of a module imports ``imported``, something of the package, both as parts of ``src/shoal``."""

    module: Path
    line: int
    imported: str

    def fault(self) -> str | None:
        """What is wrong with it; None if nothing is."""
        importer = _part(self.module.parts[0])
        if importer == self.imported:
            return None
        if importer not in LEVEL or self.imported not in LEVEL:
            return (
                f"{self.module}:{self.line}: {importer or 'shoal'} imports {self.imported or 'shoal'}: not in the order"
            )
        if LEVEL[importer] == LEVEL[self.imported]:
            return f"{self.module}:{self.line}: {importer} imports {self.imported}, another framework"
        if LEVEL[importer] < LEVEL[self.imported]:
            return f"{self.module}:{self.line}: {importer or 'shoal'} imports {self.imported or 'shoal'}, which stands below it"
        return None


def _part(name: str) -> str:
    """The folder or module at the top; "" for the package itself."""
    return name.removesuffix(".py").removeprefix("__init__")


def imports_of(source: str, module: Path, root: Path = ROOT) -> Iterator[Import]:
    """``module``: its path below ``root``, the folder of the package."""

    def part_of(dotted: str) -> Iterator[str]:
        parts = dotted.split(".")
        if parts[0] == "shoal":
            yield parts[1] if len(parts) > 1 else ""

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for name in node.names:
                for part in part_of(name.name):
                    yield Import(module, node.lineno, part)
        elif isinstance(node, ast.ImportFrom):
            package = ["shoal", *module.parts[:-1]]
            above = package[: len(package) - node.level + 1] if node.level else []
            dotted = ".".join([*above, *([node.module] if node.module else [])])
            for name in node.names:
                in_package = dotted == "shoal" and (name.name in LEVEL or (root / f"{name.name}.py").exists())
                for part in part_of(f"shoal.{name.name}" if in_package else dotted):
                    yield Import(module, node.lineno, part)


def faults_of(source: str, module: str) -> list[str]:
    return [fault for found in imports_of(source, Path(module)) if (fault := found.fault()) is not None]


def test_no_folder_imports_one_below_it() -> None:
    modules = sorted(ROOT.rglob("*.py"))
    assert modules
    faults = [fault for path in modules for fault in faults_of(path.read_text(), str(path.relative_to(ROOT)))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("net/sockets.py", "from shoal.assembly import terms", "net/sockets.py:1: net imports assembly, which stands below it"),
        ("errors.py", "import shoal.config.settings", "errors.py:1: errors imports config, which stands below it"),
        ("job/groups.py", "def f():\n    from shoal import ops", "job/groups.py:2: job imports ops, which stands below it"),
        ("assembly/terms.py", "if TYPE_CHECKING:\n    from ..job import groups", "assembly/terms.py:2: assembly imports job, which stands below it"),
        ("ops/handles.py", "from shoal import Group", "ops/handles.py:1: ops imports shoal, which stands below it"),
        ("__init__.py", "import shoal.torch", "__init__.py:1: shoal imports torch, which stands below it"),
        ("tensorflow/averaging.py", "import shoal.keras", "tensorflow/averaging.py:1: tensorflow imports keras, which stands below it"),
        ("jax/arrays.py", "from shoal.torch import arena", "jax/arrays.py:1: jax imports torch, another framework"),
        ("torch/hook.py", "import shoal.horovod", "torch/hook.py:1: torch imports horovod, which stands below it"),
        ("net/sockets.py", "from shoal.extra import x", "net/sockets.py:1: net imports extra: not in the order"),
    ],
)  # fmt: skip
def test_an_import_of_what_stands_below_is_found(module: str, source: str, fault: str) -> None:
    assert faults_of(source, module) == [fault]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("net/sockets.py", "from shoal import _native\nfrom shoal.config import addresses\nfrom . import handshake\nimport os"),
        ("torch/hook.py", "import shoal\nfrom shoal import rank\nfrom shoal.torch.c10d import work"),
        ("keras/backends/tensorflow.py", "from shoal.tensorflow import averaging\nfrom shoal.torch import graph"),
        ("horovod/torch/runtime.py", "import shoal.torch\nfrom shoal.horovod.common import basics"),
    ],
)  # fmt: skip
def test_what_stands_above_may_be_imported(module: str, source: str) -> None:
    assert faults_of(source, module) == []


def test_a_framework_is_imported_in_its_own_folder_of_horovods_door_alone() -> None:
    """Who has one framework needs no other, and ``python -m shoal.horovod`` none. Keras is there for TensorFlow alone."""
    strangers = []
    for path in sorted((ROOT / "horovod").rglob("*.py")):
        module = path.relative_to(ROOT / "horovod")
        own = set(module.parts) & FRAMEWORKS
        own |= {"tensorflow"} if "keras" in own else set()
        for node in ast.walk(ast.parse(path.read_text())):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            parts = (
                {part for name in names for part in name.split(".")[:3]} & FRAMEWORKS if node_is_at_top(node) else set()
            )
            strangers += [f"{module}:{node.lineno}: {part}" for part in parts - own]
    assert not strangers, "\n".join(strangers)


def node_is_at_top(node: ast.AST) -> bool:
    """A function may ask for what is there; a module may not."""
    return getattr(node, "col_offset", 1) == 0


def test_the_top_of_the_package_stays_small() -> None:
    here = {path.name for path in ROOT.iterdir()} - NOT_COUNTED
    entries = {_part(name) for name in here if not name.startswith("_native.")} | {"_native", "horovod", *FRAMEWORKS}
    assert entries <= {*LEVEL}, f"not in the order: {sorted(entries - {*LEVEL})}"
    assert len(entries) <= MOST_ENTRIES


FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_says_what_it_is_and_what_it_may_import(folder: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text())) or ""
    first, *_, last = docstring.split("\n\n")
    assert first.endswith((".", ":"))
    assert last.startswith("May import ")
    assert last.endswith(".")
