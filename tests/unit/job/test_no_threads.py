"""A system that has no more threads to give: joining fails, and nothing is left of it."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import shoal


@contextmanager
def no_thread_called(refused: str) -> Iterator[None]:
    """As where a limit of processes is reached just before this thread: here since it wants a stack that is larger than the addresses."""
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        before = threading.stack_size(1 << 50 if thread.name == refused else 0)
        try:
            start(thread)
        finally:
            threading.stack_size(before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_or_refuse)
        yield


def held(what: str) -> int:
    """How many descriptors ("fd") or threads ("task") this process has, once what has been left has ended: 5 s for that."""
    until = time.monotonic() + 5
    while any(thread.name.startswith("shoal-") for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.02)
    gc.collect()
    return len(list(Path("/proc/self", what).iterdir()))


# Though the program keeps the error, and with it everything that was about to be made.
@pytest.mark.parametrize(("refused", "what"), [("shoal-links", "fd"), ("shoal-events", "task")])
def test_what_joins_in_vain_for_want_of_a_thread_leaves_nothing(
    refused: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name in ("RANK", "WORLD_SIZE") or name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    before = held(what)
    with no_thread_called(refused), pytest.raises(RuntimeError, match="start new thread") as kept:
        shoal.init()
    assert not shoal.is_initialized()
    assert held(what) == before
    del kept
    shoal.init()
    assert shoal.is_initialized()
    shoal.shutdown()
