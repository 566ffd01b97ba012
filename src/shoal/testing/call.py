"""A function call on its way to a rank, and what came of it on its way back: files that only this user reads.

Functions travel by name, so they are those of a module: not lambdas, not functions inside of functions, not of
``__main__``. The ranks look for modules where the caller does.
"""

import importlib
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class RemoteError(RuntimeError):
    """An exception of a rank whose type could not be brought here; the message names it."""


@dataclass(frozen=True)
class Call:
    """``function(*arguments)``, by name."""

    path: list[str]
    module: str
    function: str
    arguments: bytes

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: tuple[Any, ...]) -> "Call":
        """Raises TypeError for a function that cannot travel."""
        module, name = function.__module__, function.__qualname__
        if module == "__main__" or "<" in name:
            raise TypeError(f"ranks find functions by name: {module}.{name} must be at the top level of a module")
        return cls(list(sys.path), module, name, pickle.dumps(arguments))

    def run(self) -> Any:
        sys.path[:] = self.path
        function: Any = importlib.import_module(self.module)
        for name in self.function.split("."):
            function = getattr(function, name)
        return function(*pickle.loads(self.arguments))


@dataclass(frozen=True)
class Result:
    """What a call returned, or the exception that it ended with and where."""

    value: Any = None
    exception: BaseException | None = None
    traceback: str = ""


def write_call(path: Path, call: Call) -> None:
    path.write_bytes(pickle.dumps(call))


def read_call(path: Path) -> Call:
    call = pickle.loads(path.read_bytes())
    assert isinstance(call, Call)
    return call


def write_value(path: Path, value: Any) -> None:
    path.write_bytes(pickle.dumps(("value", value)))


def write_exception(path: Path, error: BaseException) -> None:
    text = "".join(traceback.format_exception(error))
    try:
        data = pickle.dumps(("exception", error, text))
        _read(data)
    except Exception:  # whatever a foreign type does when it is pickled
        data = pickle.dumps(("exception", RemoteError(f"{type(error).__name__}: {error}"), text))
    path.write_bytes(data)


def read_result(path: Path) -> Result:
    """What a rank has written; nothing, if it ended before it could."""
    return _read(path.read_bytes()) if path.exists() else Result()


def _read(data: bytes) -> Result:
    kind, *parts = pickle.loads(data)
    if kind == "value":
        return Result(value=parts[0])
    error, text = parts
    return Result(exception=error, traceback=text)
