"""docs/reference.md against shoal.tensorflow: every public name with its arguments, and no other."""

import inspect
import re
from pathlib import Path

import shoal.tensorflow

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()


def shown(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return str(parameter).split(":")[0]
    if default is inspect.Parameter.empty:
        return parameter.name
    return f'{parameter.name}="{default}"' if isinstance(default, str) else f"{parameter.name}={default!r}"


def test_every_public_name_is_on_the_page_with_its_arguments() -> None:
    calls = dict(re.findall(r"^    shoal\.tensorflow\.(\w+)(\(.*\))$", PAGE, re.MULTILINE))
    assert set(calls) == set(shoal.tensorflow.__all__)
    for name, arguments in calls.items():
        parameters = inspect.signature(getattr(shoal.tensorflow, name)).parameters.values()
        public = [shown(parameter) for parameter in parameters if not parameter.name.startswith("_")]
        assert arguments == f"({', '.join(public)})", name
