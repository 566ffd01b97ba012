"""Where the scripts leave what they have measured: benchmarks/results, one name a script."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "results"


def results_of(script: str | Path) -> Path:
    """The results of a script (its ``__file__``), without a suffix: .json has every turn, .txt is for people, .png a figure."""
    return FOLDER / Path(script).stem


class Part(NamedTuple):
    """``measure(quick)``: what was found, with ``facts`` about the machine. ``tell``: that in lines, without the facts."""

    measure: Callable[[bool], dict[str, Any]]
    tell: Callable[[dict[str, Any]], list[str]]


def in_parts(script: str, title: str, parts: Mapping[str, Part], only: str | None, quick: bool) -> None:
    """Measures all parts of a script, or ``only`` one beside what is kept of the others; ``quick`` keeps nothing."""
    stem = results_of(script)
    results = stem.with_suffix(".json")
    found = json.loads(results.read_text()) if only and not quick and results.exists() else {}
    for name, part in parts.items():
        if only in (None, name):
            found[name] = part.measure(quick)
    lines = [title]
    for name in (name for name in parts if name in found):
        facts = [f"{fact}: {value}" for fact, value in found[name]["facts"].items()]
        lines += ["", *parts[name].tell(found[name]), "", *facts]
    print("\n".join(lines))
    if not quick:
        stem.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        results.write_text(json.dumps(found) + "\n")
