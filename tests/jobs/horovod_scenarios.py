"""Scenarios of Horovod's door: what registers them, and runs them on every rank."""

import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import shoal.horovod.torch as hvd

SCENARIOS: dict[str, Callable[[], None]] = {}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


def run_each() -> dict[str, str]:
    """On every rank: the traceback of each scenario, empty if it holds."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Using backward.. with create_graph", UserWarning)
    hvd.init()
    return {name: run(function) for name, function in SCENARIOS.items()}


def run(function: Callable[[], None]) -> str:
    torch.manual_seed(hvd.rank())
    try:
        function()
    except (Exception, pytest.fail.Exception):
        return traceback.format_exc()
    return ""


@contextmanager
def in_turn(seconds: float) -> Iterator[None]:
    """Rank 0 comes so much later. Whoever goes through before it is too early."""
    hvd.barrier()
    begun = time.monotonic()
    if hvd.rank() == 0:
        time.sleep(seconds)
    yield
    assert time.monotonic() - begun >= seconds * 0.9
