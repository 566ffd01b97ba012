"""Futures of operations: callbacks know where they belong, and errors are errors to everyone."""

import pytest
import torch

from shoal.errors import PeerLost
from shoal.torch.c10d import call_sites
from shoal.torch.c10d.call_sites import CallSite
from shoal.torch.c10d.futures import OperationFuture


def names_of_operations(done_before: bool) -> list[str]:
    """What operations are called that callbacks of two levels would call."""
    found: list[str] = []

    def call_two(_: object) -> None:
        here = call_sites.current()
        assert here is not None
        found.extend(str(here.operation()) for _ in range(2))

    future = OperationFuture(CallSite("group.7"))
    if done_before:
        future.set_result(1)
    following = future.then(call_two)
    following.then(call_two)
    future.add_done_callback(call_two)
    if not done_before:
        future.set_result(1)
    assert call_sites.current() is None
    return found


def test_callbacks_are_known_by_what_they_follow_whenever_it_is_done() -> None:
    names = names_of_operations(done_before=True)
    assert sorted(names) == sorted(names_of_operations(done_before=False))
    assert len(set(names)) == 6


def test_operations_of_the_program_and_of_callbacks_have_different_places() -> None:
    program = CallSite("group")
    first, second = program.operation(), program.operation()
    assert len({str(first), str(second), str(first.callback()), str(first.callback().operation())}) == 4


def test_a_long_path_is_a_digest() -> None:
    call_site = CallSite("group")
    for _ in range(1000):
        call_site = call_site.callback()
    assert len(str(call_site)) <= 200


def test_an_error_comes_out_of_wait_value_and_every_callback() -> None:
    future = OperationFuture(CallSite("group.0"))
    following = future.then(lambda done: done.value() + 1)
    future.set_exception(PeerLost("rank 1 is lost", 1, "host"))
    for call in (future.wait, future.value, following.wait, following.then(lambda done: done.wait()).wait):
        with pytest.raises(PeerLost, match="rank 1 is lost"):
            call()


def test_an_error_is_one_to_code_that_looks_for_tensors() -> None:
    future = OperationFuture(CallSite("group.0"))
    future.set_exception(PeerLost("rank 1 is lost", 1, "host"))
    future._set_unwrap_func(lambda _: None)
    with pytest.raises(PeerLost, match="rank 1 is lost"):
        torch._jit_internal._extract_tensors(future.value())  # as the reducer of DistributedDataParallel does
