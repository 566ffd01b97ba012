"""After each test here the threads and descriptors of Shoal are gone."""

import gc
import os
import threading
import time
from collections.abc import Iterator

import pytest

from shoal.job.session import _sessions


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Threads and descriptors are where they were."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    yield
    for session in list(_sessions):  # of a test that failed
        session.close()
    deadline = time.monotonic() + 5
    while _shoal_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _shoal_threads() == []
    gc.collect()  # pytest keeps frames of failures in cycles
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def _shoal_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("shoal-")]
