"""The layers of the native core, as CMakeLists.txt lists them: no file includes a header of a higher layer, or of a sibling."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
# What stands on the core, from the lowest.
ABOVE_THE_CORE = ["drivers/sim", "drivers/sim/packet_level", "bindings", "xla", "tensorflow", "fuzz", "tests"]
# Shared by its siblings.
COMMON = "drivers/common"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def layers() -> list[str]:
    """All folders with sources, from the lowest."""
    listed = re.search(r"set\(SHOAL_LAYERS([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())
    assert listed
    return listed[1].split() + ABOVE_THE_CORE


def may_include(folder: str, included: str, order: list[str]) -> bool:
    """Whether a file of one folder may include a header of another."""
    if folder == included:
        return True
    parent, _, _ = folder.rpartition("/")
    siblings = parent and included.startswith(f"{parent}/") and included != COMMON
    nested = folder.startswith(f"{included}/")
    return order.index(included) < order.index(folder) and (nested or not siblings)


def includes() -> Iterator[tuple[str, str, str]]:
    """Each file, its folder, and the folder of each header of ours that it includes."""
    order = layers()
    for path in sorted([*NATIVE.rglob("*.h"), *NATIVE.rglob("*.cpp")]):
        folder = path.parent.relative_to(NATIVE).as_posix()
        for header in INCLUDE.findall(path.read_text()):
            found = header.rpartition("/")[0] or folder
            assert found in order, f"{path.relative_to(ROOT)} includes {header}, which is in no layer"
            yield path.relative_to(ROOT).as_posix(), folder, found


def test_no_file_includes_a_header_of_a_higher_layer_or_of_a_sibling() -> None:
    order = layers()
    upward = [
        f"{file}: a file of {folder} includes one of {included}"
        for file, folder, included in includes()
        if not may_include(folder, included, order)
    ]
    assert upward == []


def test_the_rule_knows_upward_and_sideways() -> None:
    order = layers()
    assert may_include("engine", "protocol/worker", order)
    assert may_include("drivers/sim/packet_level", "drivers/sim", order)
    assert not may_include("protocol", "protocol/worker", order)
    assert not may_include("protocol/worker", "protocol/server", order)
    assert not may_include("wire", "protocol", order)


def test_every_folder_with_sources_is_a_layer() -> None:
    folders = {path.parent.relative_to(NATIVE).as_posix() for path in NATIVE.rglob("*.cpp")}
    assert folders == set(layers())
