"""From gradients as autograd delivers them to gradients that are averaged, inside ``loss.backward()``.

The life of a backward pass:

    an output's hook        is the first sign of it; a callback is left with the engine for its end
    a parameter's hook      puts the gradient into its place in the arena; a buffer that is complete is submitted
    the callback            checks that all gradients came, waits for all results, and raises what went wrong

The engine holds the only reference to the callback. If the pass ends with an exception, the callback is destroyed without
being called: that is how the ranks that wait for this one learn of it at once.

The first pass of a layout records in which order gradients arrive at the group's first member; its order is broadcast and
becomes the order in every arena. What arrives in another order later is put where it belongs all the same.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal import trace
from shoal.errors import ShoalError
from shoal.torch import graph
from shoal.torch.agreement import Statement
from shoal.torch.arena import GradientArenas, NamedParameter, gradient_strides
from shoal.torch.averaging import Averaging
from shoal.torch.channel import Channel

ORDER = "order"

# How many parameters an error names before it only counts them.
NAMED_IN_ERRORS = 10


class Reducer:
    """``buffer_bytes``: the size of a buffer for so many bytes of gradients.

    ``synchronise``: whether the next backward pass averages, or only adds to the gradients of this rank.
    """

    def __init__(self, channel: Channel, find_unused: bool, buffer_bytes: Callable[[int], int]) -> None:
        self.synchronise = True
        self._channel = channel
        self._find_unused = find_unused
        self._buffer_bytes = buffer_bytes
        self._parameters: list[NamedParameter] = []
        self._hooks: list[Any] = []
        self._averaging: Averaging | None = None
        self._interrupted: Averaging | None = None
        self._ending: weakref.ref[_Ending] | None = None
        self._error: Exception | None = None

    def manage(self, parameters: Sequence[NamedParameter]) -> None:
        """From now on these are the parameters whose gradients are averaged. Gradients that they have are kept.

        Raises TypeError for a dtype that cannot be averaged.
        """
        self.close()
        self._parameters = list(parameters)
        self._used: set[int] = set()
        self._unused: dict[int, torch.Tensor | None] = {}
        self._arrivals: list[int] = []
        total = sum(parameter.nbytes for _, parameter in self._parameters)
        order = range(len(self._parameters))[::-1]
        self._arenas = GradientArenas(self._parameters, order, self._buffer_bytes(total))
        self._arenas.take_over()
        self._state(order, order_is_known=False)
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
        ending = _Ending(self)
        self._ending = weakref.ref(ending, self._on_interruption)
        torch.autograd.Variable._execution_engine.queue_callback(ending)

    def reach_output(self) -> None:
        """The backward pass has reached an output of the module."""
        self.begin()
        if self.synchronise and self._averaging is None and self._error is None:
            self._record_errors(self._look_ahead)

    def arrive(self, index: int) -> None:
        """A parameter's gradient has been accumulated into ``param.grad``.

        What goes wrong is raised at the end of the pass: until then other ranks may need what this one has to give.
        """
        self.begin()
        self._record_errors(lambda: self._take(index))

    def finish(self) -> None:
        """The end of the backward pass. Raises what went wrong in it."""
        averaging, error = self._averaging, self._error
        self._averaging = self._ending = self._error = None
        if averaging is None:
            if error is not None:
                raise error
            return
        used = torch.zeros(len(self._parameters), dtype=torch.uint8)
        try:
            error = error or self._account_for_missing(averaging, used)
            averaging.finish(error)
            self._settle_unused(used)
            self._used.clear()
            if not self._order_is_known:
                self._exchange_order()
        except BaseException:
            # Every operation is done, unless the wait itself was interrupted (KeyboardInterrupt).
            self._interrupted = averaging
            raise
        finally:
            self._unused.clear()
            self._arrivals.clear()

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
        if not self._order_is_known:
            self._arrivals.append(index)
        self._started().ready(index)

    def _started(self) -> Averaging:
        if self._averaging is None:
            self._averaging = Averaging(self._channel, self._arenas, self._statement, self._find_unused)
        return self._averaging

    def _look_ahead(self) -> None:
        """Starts, if this pass accumulates gradients at all. Those that will not come need not be waited for."""
        # Where all gradients have to come, one tells.
        looked_at = self._parameters if self._find_unused else self._parameters[:1]
        reached = graph.reached(parameter for _, parameter in looked_at)
        if not any(reached):
            return
        averaging = self._started()
        for index, is_reached in enumerate(reached):
            if not is_reached:
                self._contribute_unused(averaging, index)

    def _contribute_unused(self, averaging: Averaging, index: int) -> None:
        self._unused[index] = self._arenas.contribute_unused(index)
        averaging.ready(index)

    def _account_for_missing(self, averaging: Averaging, used: torch.Tensor) -> Exception | None:
        """At the end: the error if a gradient has not come, or, where that may be, what stands in for it."""
        missing = [index for index in range(len(self._parameters)) if not averaging.is_ready(index)]
        if not self._find_unused:
            expected = [index for index in missing if self._arenas.touched[index]]
            return ShoalError(self._did_not_come(expected)) if expected else None
        try:
            for index in missing:
                self._contribute_unused(averaging, index)
            used[sorted(self._used)] = 1
            averaging.exchange_used(used)
        except Exception as failure:
            return failure
        return None

    def _settle_unused(self, used: torch.Tensor) -> None:
        for index, saved in self._unused.items():
            self._arenas.settle_unused(index, saved, used_elsewhere=bool(used[index]))

    def _exchange_order(self) -> None:
        """The arrival order at the group's first member becomes the order in every arena."""
        count = len(self._parameters)
        last = [index for index in reversed(range(count)) if index not in set(self._arrivals)]
        # A parameter that two nested passes reach arrives twice: its first arrival counts.
        order = torch.tensor(list(dict.fromkeys(self._arrivals)) + last, dtype=torch.int64)
        self._channel.broadcast(ORDER, order).wait()
        received = order.tolist()
        if sorted(received) != list(range(count)):
            raise ShoalError(f"{self._channel.here}: the order of the gradients that was broadcast is damaged")
        self._arenas.reorder(received)
        self._state(received, order_is_known=True)

    def _state(self, order: Sequence[int], order_is_known: bool) -> None:
        """What all ranks have to agree on, from now on."""
        self._order_is_known = order_is_known
        self._statement = Statement([self._header(), *(self._describe(index) for index in order)])

    def _header(self) -> str:
        known = "in arrival order" if self._order_is_known else "before the first pass"
        buffers = [buffer.memory.nbytes for buffer in self._arenas.buffers]
        return (
            f"{len(self._parameters)} parameters {known}, find_unused_parameters={self._find_unused}, buffers={buffers}"
        )

    def _describe(self, index: int) -> str:
        name, parameter = self._parameters[index]
        return describe(name, parameter)

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
        self._arrivals.clear()
        if averaging is not None:
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
            "(return tensors from forward in tuples, lists, dictionaries or dataclasses only)"
        )


class _Ending:
    """The callback for the end of a backward pass; an object, so that its end can be watched."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer

    def __call__(self) -> None:
        self._reducer.finish()


def describe(name: str, tensor: torch.Tensor) -> str:
    """A parameter or buffer in one line: all that ranks must agree on."""
    strides = gradient_strides(tensor)
    order = "" if tensor.is_contiguous() else f" strides {list(strides)}"
    return f"{name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{order}"


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
