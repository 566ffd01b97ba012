"""What docs/reference.md has of a module, and what the code has. test_*_reference.py compare them."""

import inspect
import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()

Calls = dict[str, str]  # name → arguments


def on_the_page(module: str) -> Calls:
    return dict(re.findall(rf"^    {re.escape(module)}\.(\w+)(\(.*\))$", PAGE, re.MULTILINE))


def in_the_code(module: Any, names: set[str], named_defaults: dict[int, str] | None = None) -> Calls:
    """``named_defaults``: what a default is called, by its id."""
    return {name: _arguments(getattr(module, name), named_defaults or {}) for name in names}


def _arguments(called: Any, named_defaults: dict[int, str]) -> str:
    parameters = inspect.signature(called).parameters.values()
    return f"({', '.join(_shown(each, named_defaults) for each in parameters if not each.name.startswith('_'))})"


def _shown(parameter: inspect.Parameter, named_defaults: dict[int, str]) -> str:
    default = parameter.default
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return str(parameter).split(":")[0]
    if default is inspect.Parameter.empty:
        return parameter.name
    text = f'"{default}"' if isinstance(default, str) else named_defaults.get(id(default), repr(default))
    return f"{parameter.name}={text}"
