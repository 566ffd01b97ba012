"""What several unit tests ask for."""

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import shoal


@pytest.fixture
def gone() -> "Callable[[weakref.ref[Any]], bool]":
    return _gone


def _gone(left: "weakref.ref[Any]") -> bool:
    """Whether a session that was left is collected, 5 s after its end at most. No variable of the caller may hold it."""
    if (ended := left()) is not None:
        assert ended.wait_ended(5.0)
        del ended
    # A job that was left is held while other ranks may need the server in this process. Joining the next looks after that.
    shoal.init()
    shoal.shutdown()
    until = time.monotonic() + 5
    while left() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)  # the thread that saw the end may be on its way out
    return left() is None
