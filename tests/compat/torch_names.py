"""Which names of PyTorch's Shoal uses, and which each version of it has.

    python tests/compat/torch_names.py --add VERSION    # notes what the PyTorch has that is here

Lists are in torch_names.json, of the modules and classes that Shoal uses something of: owner → versions → the names that these
versions have and no others. Names used are read from the source: what is imported, and what is asked of a module or class, of
``super()`` and of a process group's ``self``.
"""

import argparse
import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
LISTS = HERE / "torch_names.json"

PROCESS_GROUP = "torch._C._distributed_c10d.ProcessGroup"

# Attributes of Shoal's own whose class is one of PyTorch's.
KNOWN = {"_gloo": "torch._C._distributed_c10d.ProcessGroupGloo"}


# The wrapper and the hook go back to 2.4, the modules that only the backend has to 2.6.
BACKEND = {
    f"shoal/torch/c10d/{name}.py"
    for name in ("arguments", "base", "builtin_hooks", "by_device", "forgotten", "gloo", "inherited", "process_group")
}


class Use(NamedTuple):
    """``owner``: the full name of a module or class of PyTorch's. ``where``: file and line."""

    owner: str
    name: str
    where: str


def used() -> list[Use]:
    files = [*SOURCE.glob("shoal/torch/**/*.py"), *SOURCE.glob("shoal_c10d/*.py")]
    return [use for file in sorted(files) for use in _used_in(file)]


def oldest(use: Use) -> tuple[int, int]:
    """The first release that must have it."""
    return (2, 6) if use.where.split(":")[0] in BACKEND else (2, 4)


def _used_in(file: Path) -> Iterator[Use]:
    tree = ast.parse(file.read_text())
    short: dict[str, str] = {}  # name in this file → full name
    for node in ast.walk(tree):
        where = f"{file.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "torch" and not node.level:
            for alias in node.names:
                short[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield Use(str(node.module), alias.name, where)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    short[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            # _c10d: Any = distributed_c10d
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            full = _full(node.value, short)
            if isinstance(target, ast.Name) and full:
                short[target.id] = full
    bases = {
        base.id for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases if _is_name(base)
    }
    of_process_group = "Base" in bases or any(short.get(base) == PROCESS_GROUP for base in bases)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = _full(node.value, short) or (_class_of(node.value) if of_process_group else None)
            if owner:
                yield Use(owner, node.attr, f"{file.relative_to(SOURCE)}:{node.lineno}")


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def _full(node: ast.expr, short: dict[str, str]) -> str | None:
    """``torch.distributed`` for ``dist``."""
    if isinstance(node, ast.Name):
        return short.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _full(node.value, short)
        return owner and f"{owner}.{node.attr}"
    return None


def _class_of(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and _is_name(node.func) and node.func.id == "super":  # type: ignore[attr-defined]
        return PROCESS_GROUP
    if isinstance(node, ast.Name) and node.id in ("self", "made"):
        return PROCESS_GROUP
    return KNOWN.get(node.attr) if isinstance(node, ast.Attribute) else None


def lists() -> dict[str, dict[str, set[str]]]:
    """Owner → version → names."""
    found: dict[str, dict[str, set[str]]] = {}
    for owner, by_versions in (json.loads(LISTS.read_text()) if LISTS.exists() else {}).items():
        found[owner] = defaultdict(set)
        for versions, names in by_versions.items():
            for version in versions.split():
                found[owner][version] |= set(names.split())
    return found


def _written(all_lists: dict[str, dict[str, set[str]]]) -> None:
    out: dict[str, dict[str, str]] = {}
    for owner, by_version in sorted(all_lists.items()):
        versions_of: dict[str, list[str]] = defaultdict(list)
        for version in sorted(by_version, key=lambda each: [int(part) for part in each.split(".")]):
            for name in by_version[version]:
                versions_of[name].append(version)
        groups: dict[str, list[str]] = defaultdict(list)
        for name, versions in versions_of.items():
            groups[" ".join(versions)].append(name)
        out[owner] = {versions: " ".join(sorted(names)) for versions, names in sorted(groups.items())}
    LISTS.write_text(json.dumps(out, indent=1) + "\n")


def _names_of(owner: str) -> set[str] | None:
    """Without those that start with "_" where there are hundreds: what is used of them is kept. None: there is no such module or class here."""
    parts = owner.split(".")
    thing = None
    for end in range(1, len(parts) + 1):
        try:
            thing = import_module(".".join(parts[:end]))
        except ImportError:
            thing = getattr(thing, parts[end - 1], None)
            if thing is None:
                return None
    if isinstance(thing, str | dict):
        return None
    return {name for name in dir(thing) if not name.startswith("__") or name == "__version__"}


def add(version: str) -> None:
    all_lists = lists()
    asked = used()
    for owner in {use.owner for use in asked}:
        names = _names_of(owner)
        if names is None:
            continue
        if len(names) > 300:
            names = {name for name in names if not name.startswith("_")} | {
                use.name for use in asked if use.owner == owner and use.name in names
            }
        all_lists.setdefault(owner, defaultdict(set))[version] = names
    _written(all_lists)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", required=True, metavar="VERSION")
    add(parser.parse_args().add)
