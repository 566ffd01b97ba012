"""From gradients as autograd delivers them to gradients that are averaged, inside ``loss.backward()``.

The life of a backward pass:

    an output's hook        is the first sign of it; a callback is left with the engine for its end
    a parameter's hook      puts the gradient into its place in the arena; a buffer that is complete is submitted
    the callback            checks that all gradients came, waits for all results, and raises what went wrong

The engine holds the only reference to the callback. If the pass ends with an exception, the callback is destroyed without
being called: that is how the ranks that wait for this one learn of it at once.

The first pass of a layout records in which order gradients arrive at the group's first member; its order is broadcast and
becomes the order in every arena, and seldom another one later (order.py). What arrives in another order is put where it
belongs all the same.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from shoal import trace
from shoal.errors import ShoalError
from shoal.torch import graph
from shoal.torch.added import KnownParameters, describe_values
from shoal.torch.agreement import Statement
from shoal.torch.arena import GradientArenas, NamedParameter
from shoal.torch.averaging import Averaging
from shoal.torch.channel import Channel
from shoal.torch.compiled import untraced
from shoal.torch.logging_data import DDPLoggingData, one_pass
from shoal.torch.members import describe
from shoal.torch.order import OrderWatch
from shoal.torch.static import StaticGraph

_log = logging.getLogger("shoal")

ORDER = "order"

# How many parameters an error names before it only counts them.
NAMED_IN_ERRORS = 10


class Turn(NamedTuple):
    """How the ranks take the next pass. ``root``: the group's member whose word counts where one has to be chosen.

    ``scale``: what the mean over all members is multiplied by.
    """

    root: int = 0
    scale: float = 1.0


class Reducer:
    """``find_unused``: whether parameters may be without a gradient. ``static_graph``: whether it is always the same ones.

    ``buffer_bytes``: the size of a buffer for so many bytes of gradients. ``known``: the parameters that are the same on all
    ranks.
    ``synchronise``: whether the next backward pass averages, or only adds to the gradients of this rank.
    ``take_turn``: called before anything of a pass is submitted. ``must_start_anew``: the ranks have found that they differ, so
    all of them have to call ``manage`` again.
    """

    def __init__(
        self,
        channel: Channel,
        find_unused: bool,
        static_graph: bool,
        buffer_bytes: Callable[[int], int],
        known: KnownParameters,
    ) -> None:
        self.synchronise = True
        self.take_turn: Callable[[], Turn] = Turn
        self.must_start_anew = False
        self._known = known
        self.logging_data = DDPLoggingData()
        self._turn = Turn()
        self._begun_ns = 0
        self._channel = channel
        self._find_unused = find_unused or static_graph
        self._is_static = static_graph
        self._buffer_bytes = buffer_bytes
        self._parameters: list[NamedParameter] = []
        self._hooks: list[Any] = []
        self._averaging: Averaging | None = None
        self._interrupted: Averaging | None = None
        self._ending: weakref.ref[_Ending] | None = None
        self._order = OrderWatch()
        self._error: Exception | None = None
        # Autograd has a thread for each accelerator, and hooks are called in that of their gradient.
        self._hooked = threading.RLock()

    def manage(self, parameters: Iterable[NamedParameter]) -> None:
        """From now on these are the parameters of the module. Gradients that they have are kept.

        Raises TypeError for a dtype that cannot be averaged.
        """
        self.close()
        everything = list(parameters)
        self._parameters = [(name, parameter) for name, parameter in everything if parameter.requires_grad]
        self._added = self._known.unknown_of(everything)
        self.must_start_anew = False
        self._used: set[int] = set()
        self._unused: dict[int, torch.Tensor | None] = {}
        self._arrivals: list[int] = []
        total = sum(parameter.nbytes for _, parameter in self._parameters)
        order = range(len(self._parameters))[::-1]
        self._arenas = GradientArenas(self._parameters, order, self._buffer_bytes(total))
        self._arenas.take_over()
        self._order = OrderWatch()
        self._static = StaticGraph() if self._is_static else None
        self._state(order)
        for index, (_, parameter) in enumerate(self._parameters):
            hook = parameter.register_post_accumulate_grad_hook(_weakly(self, index))  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def close(self) -> None:
        """Lets go of the parameters. Their gradients stay as they are."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def settle_interrupted(self) -> None:
        """Waits for what an interrupted backward pass left open, so that the gradients can be used again."""
        interrupted, self._interrupted = self._interrupted, None
        if interrupted is not None:
            interrupted.wait()

    @untraced
    def watch(self, output: Any) -> None:
        """Before the backward pass: marks where it will begin."""
        for tensor in graph.tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(_weakly(self, None))  # type: ignore[no-untyped-call]

    @property
    def averaging(self) -> Averaging | None:
        """The pass that is on, if one is and it averages."""
        return self._averaging

    @property
    def arenas(self) -> GradientArenas:
        return self._arenas

    def begin(self) -> None:
        """The first sign of a backward pass, and any later one. Leaves the callback for its end."""
        if self._ending is not None:
            return
        self.settle_interrupted()
        self._begun_ns = time.monotonic_ns()
        ending = _Ending(self)
        self._ending = weakref.ref(ending, self._on_interruption)
        torch.autograd.Variable._execution_engine.queue_callback(ending)

    def reach_output(self) -> None:
        """The backward pass has reached an output of the module."""
        with self._hooked:
            self.begin()
            if self.synchronise and self._averaging is None and self._error is None:
                self._record_errors(self._look_ahead)

    def arrive(self, index: int) -> None:
        """A parameter's gradient has been accumulated into ``param.grad``.

        What goes wrong is raised at the end of the pass: until then other ranks may need what this one has to give.
        """
        with self._hooked:
            self.begin()
            self._record_errors(lambda: self._take(index))

    def finish(self) -> None:
        """The end of the backward pass. Raises what went wrong in it."""
        averaging, error = self._averaging, self._error
        self._averaging = self._ending = self._error = None
        if averaging is not None:
            self._conclude(averaging, error)
        elif error is not None:
            raise error

    def shadow(self, turn: Turn) -> None:
        """Takes part in a pass of the other ranks without gradients of its own, which count as zero.

        Raises what a backward pass would have raised. Gradients are unspecified afterwards.
        """
        self.settle_interrupted()
        self._turn, self._begun_ns = turn, time.monotonic_ns()
        self._used.clear()
        averaging = Averaging(self._channel, self._arenas, self._statement(), () if self._find_unused else None)
        for index in range(len(self._parameters)):
            self._arenas.view(index).zero_()
            self._unused[index] = None
            averaging.ready(index)
        self._conclude(averaging, None)

    def _conclude(self, averaging: Averaging, error: Exception | None) -> None:
        """All gradients of the pass are there, or will not come."""
        computed_ns = time.monotonic_ns()
        used = torch.zeros(len(self._parameters), dtype=torch.uint8)
        try:
            error = error or self._account_for_missing(averaging, used)
            averaging.finish(error)
            averaging.scale(self._turn.scale)
            self._settle_unused(used)
            self._used.clear()
            self._known.learn(self._added)
            self._added.clear()
            self._watch_order()
            if self._static is not None:
                self._static.learn(self._arrivals)
        except BaseException:
            # Every operation is done, unless the wait itself was interrupted (KeyboardInterrupt).
            self._interrupted = averaging
            self._order.restart()
            self.must_start_anew = self.must_start_anew or averaging.disagreed
            raise
        finally:
            self._unused.clear()
            self._arrivals = []
        self.logging_data += one_pass(averaging, self._arenas.nbytes, self._begun_ns, computed_ns, time.monotonic_ns())

    def _take(self, index: int) -> None:
        name, parameter = self._parameters[index]
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise ShoalError(self._is_sparse(name))
        self._used.add(index)
        if self._averaging is not None and self._averaging.is_sent(index):
            raise ShoalError(self._came_too_late(name))
        self._arenas.place(index)
        self._unused.pop(index, None)
        if not self.synchronise or self._error is not None:
            return
        trace.instant("gradient ready", parameter=name)
        self._arrivals.append(index)
        if self._averaging is None:
            self._start(None)
        if self._averaging is not None and (self._static is None or self._static.arrived(index)):
            self._averaging.ready(index)

    def _look_ahead(self) -> None:
        """Starts, if this pass accumulates gradients at all."""
        reached = self._reached()
        if any(reached):
            self._start(reached)

    def _reached(self) -> list[bool]:
        """Which gradients will come in this pass. Where all have to, one tells."""
        looked_at = self._parameters if self._find_unused else self._parameters[:1]
        return graph.reached(parameter for _, parameter in looked_at)

    def _start(self, reached: Sequence[bool] | None) -> None:
        """``reached``: which gradients will come, where that is known. Those that will not need not be waited for."""
        self._turn = self.take_turn()
        if not self._find_unused:
            self._averaging = Averaging(self._channel, self._arenas, self._statement(), None)
            return
        everything = set(range(len(self._parameters)))
        come = None if reached is None else {index for index, is_reached in enumerate(reached) if is_reached}
        if self._static is not None:
            come = self._static.start()
        come = everything if come is None else come
        self._averaging = Averaging(self._channel, self._arenas, self._statement(), come | self._used)
        for index in sorted(everything - come):
            self._contribute_unused(self._averaging, index)

    def _contribute_unused(self, averaging: Averaging, index: int) -> None:
        self._unused[index] = self._arenas.contribute_unused(index)
        averaging.ready(index)

    def _account_for_missing(self, averaging: Averaging, used: torch.Tensor) -> Exception | None:
        """At the end: the error if a gradient has not come, or, where that may be, what stands in for it."""
        missing = [index for index in range(len(self._parameters)) if not averaging.is_ready(index)]
        arrived = set(self._arrivals)
        if not self._find_unused:
            expected = [index for index in missing if self._arenas.touched[index]]
            return ShoalError(self._did_not_come(expected)) if expected else None
        try:
            for index in missing:
                if index in arrived:
                    averaging.ready(index)
                else:
                    self._contribute_unused(averaging, index)
            for index in self._arrivals:
                if not averaging.will_be_sent(index):
                    return ShoalError(self._came_too_late(self._parameters[index][0]))
            used[sorted(self._used)] = 1
            averaging.exchange_used(used)
        except Exception as failure:
            return failure
        return None

    def _settle_unused(self, used: torch.Tensor) -> None:
        for index, saved in self._unused.items():
            self._arenas.settle_unused(index, saved, used_elsewhere=bool(used[index]))

    def _watch_order(self) -> None:
        """The pass has ended well. Where the order is due, that of the turn's root becomes the order in every arena."""
        due = self._order.is_due
        self._order.passed(self._arrivals)
        if not due:
            return
        now = self._arenas.order
        wanted = self._order.settled_on(now) if self._channel.group.rank == self._turn.root else now
        if self._order.is_known and not self._arenas.changes_buffers(wanted):
            wanted = now
        order = torch.tensor(wanted, dtype=torch.int64)
        self._channel.broadcast(ORDER, order, self._turn.root).wait()
        received = order.tolist()
        if sorted(received) != list(range(len(now))):
            raise ShoalError(f"{self._channel.here}: the order of the gradients that was broadcast is damaged")
        renewed = received != now
        if renewed and self._order.is_known:
            self.logging_data += DDPLoggingData(order_renewals=1)
            trace.instant("order of gradients renewed")
            _log.info("%s: the order of the gradients has changed for good and was renewed", self._channel.here)
        self._order.looked(renewed)
        if renewed:
            self._arenas.reorder(received)
        self._state(received)

    def _state(self, order: Sequence[int]) -> None:
        """What all ranks have to agree on, from now on: in most passes, and where they exchange the order at the end."""
        self._lines = [self._describe(index) for index in order]
        self._statements = [Statement([self._header(due), *self._lines]) for due in (False, True)]

    def _statement(self) -> Statement:
        if self._added:
            return Statement([self._header(self._order.is_due), *self._lines, *describe_values(self._added)])
        return self._statements[self._order.is_due]

    def _header(self, order_is_due: bool) -> str:
        known = "in arrival order" if self._order.is_known else "before the first pass"
        due = ", whose order is looked at after this pass" if order_is_due else ""
        buffers = [buffer.memory.nbytes for buffer in self._arenas.buffers]
        return (
            f"{len(self._parameters)} parameters {known}{due}, find_unused_parameters={self._find_unused}, "
            f"buffers={buffers}"
        )

    def _describe(self, index: int) -> str:
        name, parameter = self._parameters[index]
        return describe(name, parameter, self._arenas.device_number(index))

    def _record_errors(self, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:
            self._error = self._error or error

    def _on_interruption(self, _: object) -> None:
        """The callback is gone. If it was never called, the pass has ended with an error."""
        if self._ending is None:
            return
        averaging, error = self._averaging, self._error
        self._averaging = self._ending = self._error = None
        self._unused.clear()
        self._arrivals = []
        if averaging is not None:
            self._order.restart()
            reason = f"{self._channel.here}: the backward pass ended with an error before all gradients were there"
            averaging.abandon(reason if error is None else f"{reason}: {error}")
            self._interrupted = averaging

    def _did_not_come(self, missing: Sequence[int]) -> str:
        names = [self._parameters[index][0] for index in missing]
        more = f" and {len(names) - NAMED_IN_ERRORS} more" if len(names) > NAMED_IN_ERRORS else ""
        return (
            f"{self._channel.here}: this backward pass gave no gradient for {', '.join(names[:NAMED_IN_ERRORS])}{more}. "
            "If parameters may be without a gradient in a step, pass find_unused_parameters=True to "
            "DistributedDataParallel; if these never get one, set requires_grad to False on every rank"
        )

    def _is_sparse(self, name: str) -> str:
        return (
            f"{self._channel.here}: the gradient of {name} is sparse, and only dense ones are averaged: make the layer with "
            "sparse=False"
        )

    def _came_too_late(self, name: str) -> str:
        return (
            f"{self._channel.here}: a gradient of {name} came after the parameter's gradient had been sent. It was reached "
            "by two nested backward passes (use torch.utils.checkpoint with use_reentrant=False) or not seen as used "
            "(return tensors from forward in tuples, lists, dictionaries or dataclasses only). If every step is the same, "
            "static_graph=True allows both"
        )


class _Ending:
    """The callback for the end of a backward pass; an object, so that its end can be watched."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer

    def __call__(self) -> None:
        self._reducer.finish()


def _weakly(reducer: Reducer, index: int | None) -> Callable[[torch.Tensor], None]:
    """A hook that does not keep the reducer alive: of the parameter ``index``, or of an output."""
    reference = weakref.ref(reducer)

    def hook(_: torch.Tensor) -> None:
        found = reference()
        if found is None:
            return
        if index is None:
            found.reach_output()
        else:
            found.arrive(index)

    return hook
