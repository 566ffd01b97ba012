"""Scenarios of shoal.torch for 3 ranks: the end of a pass fails, on one rank alone as by KeyboardInterrupt or for one wrapper of several, and
training goes on.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_scenarios import TINY_MB, inputs, loss_of, mlp, step_is_right

import shoal
from shoal.torch import DistributedDataParallel, arena_memory

SCENARIOS: dict[str, Callable[[], None]] = {}

# Seconds until the interruption, and until the rank that the others wait for comes.
SOON, LATER = 0.2, 0.6

# The last rank, which is nobody's root.
LATE = 2

# Seconds that a few steps take at most, on a busy machine: less than SHOAL_TIMEOUT there.
LONGEST = 10.0


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


def waits(call: Callable[[], object], interrupted: int, late: int) -> None:
    """Every rank's ``call`` waits for the ``late`` one; that of the ``interrupted`` one is interrupted meanwhile."""
    if shoal.rank() == interrupted:
        threading.Timer(SOON, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            call()
        return
    if shoal.rank() == late:
        time.sleep(LATER)
    call()


@scenario
def a_rank_whose_wait_was_interrupted_is_in_step_with_the_others() -> None:
    """Also where the ranks exchange the order at the end of the pass, and with a pass of two wrappers."""
    for interrupted, before in ((0, 0), (1, 1)):
        models = [DistributedDataParallel(mlp(), fusion_mb=TINY_MB) for _ in range(2)]
        for model in models:
            model._reducer.managed.order._interval = 4
            for _ in range(before):
                step_is_right(model)
        loss = sum(loss_of(model, shoal.rank()) for model in models)
        waits(loss.backward, interrupted, LATE)  # type: ignore[union-attr]
        for _ in range(4):
            for model in models:
                step_is_right(model)


@scenario
def buffers_are_in_step_after_an_interrupted_wait() -> None:
    """They are of two dtypes, which travel apart."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    model(inputs(shoal.rank())).square().sum().backward()
    waits(lambda: model(inputs(shoal.rank())), interrupted=1, late=0)
    for step in range(2):
        model(inputs(shoal.rank(), step)).square().sum().backward()
        passes = shoal.allgather(model.module[1].num_batches_tracked.view(1)).tolist()
        assert passes == [passes[0]] * shoal.size()


@scenario
def a_rank_that_has_written_to_a_gradient_on_its_way_is_in_step_with_the_others() -> None:
    model = DistributedDataParallel(mlp())
    accumulator = torch.autograd.graph.get_gradient_edge(model.module[0].weight).node

    def change_another(*_: object) -> None:
        model.module[4].weight.grad.mul_(2)

    loss = loss_of(model, shoal.rank())
    if shoal.rank() == 1:
        late = accumulator.register_hook(change_another)
        with pytest.raises(shoal.ShoalError, match="written to while it was being averaged"):
            loss.backward()
        late.remove()
    else:
        loss.backward()
    step_is_right(model)


def stops_in(model: DistributedDataParallel, error: type[BaseException], text: str) -> Callable[[], None]:
    """From now on the arenas of this rank cannot be prepared. Returns what ends that."""
    arenas = model._reducer.arenas

    def stop() -> None:
        raise error(text)

    arenas.prepare = stop  # type: ignore[method-assign]
    return lambda: delattr(arenas, "prepare")


@scenario
def a_pass_that_cannot_begin_on_one_rank_is_an_error_on_every_rank() -> None:
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        model = DistributedDataParallel(mlp(), **options)
        for error in (MemoryError, KeyboardInterrupt):
            loss = loss_of(model, shoal.rank())
            if shoal.rank() == 1:
                mend = stops_in(model, error, "no memory for 4 bytes")
                with pytest.raises(error):
                    loss.backward()
                mend()
            else:
                said = "no memory for 4 bytes" if error is MemoryError else "interrupted by KeyboardInterrupt"
                with pytest.raises(shoal.ShoalError, match=f"failed on rank 1 .*{said}"):
                    loss.backward()
            for _ in range(2):
                step_is_right(model)


@scenario
def an_error_that_is_kept_keeps_nobody_in_the_pass() -> None:
    """Its frames are those of the pass that it ended."""
    model = DistributedDataParallel(mlp())
    for error in (KeyboardInterrupt, MemoryError):
        loss = loss_of(model, shoal.rank())
        if shoal.rank() == 1:
            mend = stops_in(model, error, "no memory for 4 bytes")
            # Where there is no memory, the program finds none either.
            hook = model.module[0].weight.register_hook(lambda _: 1 / 0)
            with pytest.raises((error, ZeroDivisionError)) as kept:
                loss.backward()
            hook.remove()
            mend()
            assert kept.tb is not None
        else:
            with pytest.raises(shoal.ShoalError, match="failed on rank 1 "):
                loss.backward()
        for _ in range(2):
            step_is_right(model)
    loss = loss_of(model, shoal.rank())
    if shoal.rank() == 1:
        reducer = model._reducer
        reducer.finish = lambda: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt) as at_the_end:
            loss.backward()
        del reducer.finish
        assert not reducer.is_in_pass
        assert at_the_end.tb is not None
    else:
        loss.backward()
    for _ in range(2):
        step_is_right(model)


@scenario
def arenas_for_which_there_was_no_memory_are_made_for_the_next_pass() -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    for of_what, name in ((arena_memory, "allocate"), (Tensor, "clone")):
        model = DistributedDataParallel(mlp())
        step_is_right(model)
        # Its gradient needs a place of its own, that of the layer a place in an arena.
        model.module[2].weight.requires_grad_(False)
        model.module.append(nn.Linear(2, 2))
        for parameter in model.module[5].parameters():
            nn.init.ones_(parameter)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(of_what, name, refuse)
            with pytest.raises(MemoryError):
                loss_of(model, shoal.rank())
        for _ in range(2):
            step_is_right(model)
        assert not model._reducer.arenas._apart


@scenario
def a_pass_that_only_adds_up_cannot_begin_on_one_rank() -> None:
    model = DistributedDataParallel(mlp())
    with model.no_sync():
        loss = loss_of(model, shoal.rank())
    if shoal.rank() == 1:
        mend = stops_in(model, MemoryError, "no memory for 4 bytes")
        with pytest.raises(MemoryError):
            loss.backward()
        mend()
    else:
        loss.backward()
    step_is_right(model)


@scenario
def a_rank_that_has_run_out_of_inputs_cannot_take_part() -> None:
    model = DistributedDataParallel(mlp())
    if shoal.rank() == 1:
        stops_in(model, MemoryError, "no memory for 4 bytes")
        with pytest.raises(MemoryError), model.join():
            pass
    else:
        with pytest.raises(shoal.ShoalError, match=r"failed on rank 1 .*no memory for 4 bytes"), model.join():
            loss_of(model, shoal.rank()).backward()


class Halved(nn.Module):
    """On rank 1 half of its parameters have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.elsewhere = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.always(x)
        return out if shoal.rank() == 1 else out + self.elsewhere(x)


@scenario
def wrappers_go_on_at_once_after_a_pass_that_failed_between_them() -> None:
    """On each rank half of the wrappers have come to their end, and asked for the order of their gradients: on another rank the other half."""
    for _ in range(4):
        models = [DistributedDataParallel(mlp()) for _ in range(4)]
        first, last = (models[:2], models[2:]) if shoal.rank() == 0 else (models[2:], models[:2])
        # The pass comes first to those that were called last.
        called = [*last, DistributedDataParallel(Halved()), *first]
        loss = sum(loss_of(model, shoal.rank()) for model in called)
        with pytest.raises(shoal.ShoalError, match="gave no gradient for elsewhere"):
            loss.backward()  # type: ignore[union-attr]
        began = time.monotonic()
        for model in models:
            step_is_right(model)
        assert time.monotonic() - began < LONGEST
