"""Scenarios: functions that every rank runs, one after the other in one job; a test for each says where it failed."""

import traceback
from collections.abc import Callable

import pytest

Scenario = Callable[[], None]


class Scenarios:
    """Those of one module. ``begin``: called before each, on every rank."""

    def __init__(self, begin: Scenario) -> None:
        self._begin = begin
        self.functions: dict[str, Scenario] = {}

    def __call__(self, function: Scenario) -> Scenario:
        """Registers a scenario: a decorator."""
        self.functions[function.__name__] = function
        return function

    def run_each(self) -> dict[str, str]:
        """On every rank: the traceback of each scenario, empty if it holds."""
        return {name: self._run(function) for name, function in self.functions.items()}

    def _run(self, function: Scenario) -> str:
        try:
            self._begin()
            function()
        except (Exception, pytest.fail.Exception):
            return traceback.format_exc()
        return ""


def failures(results: list[dict[str, str]], name: str) -> str:
    """What went wrong in this scenario, by rank; empty if nothing."""
    return "\n".join(f"rank {rank}:\n{result[name]}" for rank, result in enumerate(results) if result[name])
