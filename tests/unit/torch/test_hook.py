"""The communication hook, without a process group: what it keeps of a job."""

import gc
import time
import weakref

import pytest

import shoal
from shoal.job import runtime
from shoal.torch import hook


def test_a_job_that_was_left_goes_with_the_group_that_the_hook_has_made_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook.membership, "join_default", shoal.init)
    group = hook._group(None)
    assert hook._group(None) is group, "it is made once"
    hook._operations(group)
    left, everyone = weakref.ref(runtime.current()), weakref.ref(group)
    shoal.shutdown()
    assert group.session.wait_ended(5.0)
    del group
    # A job that was left is held while other ranks may need the server in this process. Joining the next looks after that.
    shoal.init()
    shoal.shutdown()
    until = time.monotonic() + 5
    while left() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)  # the thread that saw the end may be on its way out
    assert (left(), everyone()) == (None, None)
