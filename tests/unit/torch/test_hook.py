"""The communication hook, without a process group: what it keeps of a job."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest

import shoal
from shoal.job import runtime
from shoal.torch import hook


def test_a_job_that_was_left_goes_with_the_group_that_the_hook_has_made_in_it(
    monkeypatch: pytest.MonkeyPatch, gone: Callable[[Any], bool]
) -> None:
    monkeypatch.setattr(hook.membership, "join_default", shoal.init)
    group = hook._group(None)
    assert hook._group(None) is group, "it is made once"
    hook._operations(group)
    left, everyone = weakref.ref(runtime.current()), weakref.ref(group)
    shoal.shutdown()
    del group
    assert gone(left)
    assert everyone() is None
