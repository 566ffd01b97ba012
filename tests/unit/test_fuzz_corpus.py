"""The inputs that the fuzzers of Python code have kept: without a fuzzer, they are tests."""

import importlib
import sys
from pathlib import Path

import pytest

FUZZERS = Path(__file__).parents[1] / "fuzz"
NAMES = sorted(file.stem for file in FUZZERS.glob("*_fuzz.py"))


@pytest.mark.parametrize("name", NAMES)
def test_what_was_kept_of_a_fuzzer_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FUZZERS), *sys.path])
    fuzzer = importlib.import_module(name)
    inputs = sorted((FUZZERS / "corpus" / name).iterdir())
    assert inputs
    for file in inputs:
        fuzzer.one_input(file.read_bytes())
