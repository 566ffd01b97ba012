"""From gradients as autograd delivers them to gradients that are averaged, inside ``loss.backward()``.

The life of a backward pass:

    an output's hook        is the first sign of it; a callback is left with the engine for its end
    an accumulator's hook   puts the gradient into its slot in the arena; a buffer that is complete is submitted
    the callback            checks that all gradients came, waits for all results, and raises what went wrong

The accumulator is the node of the graph that adds to ``param.grad``. Its hooks come after those of the parameter, so the program's
own hooks have done what they do to a gradient before it is averaged, whenever they were registered.

A pass averages if it goes through an output of a forward pass that was to be averaged, or if it comes after such a forward pass
and none has averaged since: that is PyTorch's rule, and finds outputs that nobody could see. Every other pass is the program's own,
and is left alone.

The engine holds the only reference to the callback. If the pass ends with an exception, the callback is destroyed without
being called: that is how the ranks that wait for this one learn of it at once.

The first pass of a layout records in which order gradients arrive at the group's first member; its order is broadcast and
becomes the order in every arena, and seldom another one later (order.py). What arrives in another order is put where it
belongs all the same.
"""

import enum
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from shoal.errors import ShoalError
from shoal.job import trace
from shoal.torch import complaints, graph, owners, passes
from shoal.torch.agreement import Statement
from shoal.torch.arena import GradientArenas, NamedParameter
from shoal.torch.averaging import Averaging
from shoal.torch.compiled import untraced
from shoal.torch.gradient_format import gradient_dtype
from shoal.torch.logging_data import DDPLoggingData, one_pass
from shoal.torch.module_tensors import describe
from shoal.torch.named_operations import NamedOperations
from shoal.torch.new_parameters import KnownParameters, describe_values
from shoal.torch.order import OrderWatch
from shoal.torch.static import StaticGraph
from shoal.torch.submissions import AnyHandle
from shoal.torch.weak_hooks import weakly

_log = logging.getLogger("shoal")

ORDER = "order"

# After so many passes with the same frozen parameters they get no slots any more. Until then they may be thawed in the next step, as
# a discriminator's are, and to leave them their slots costs a part of a buffer or two.
FROZEN_FOR_GOOD = 20


class Turn(NamedTuple):
    """How the ranks take the next pass. ``root``: the group's member whose word counts where one has to be chosen.

    ``scale``: what the mean over all members is multiplied by.
    """

    root: int = 0
    scale: float = 1.0


class _Pass(enum.Enum):
    """What a backward pass is to this wrapper."""

    NOT_OURS = enum.auto()
    ADDS = enum.auto()
    """It goes through a forward pass inside ``no_sync``: gradients are put into their slots, and that is all."""
    AVERAGES = enum.auto()


class Reducer:
    """``find_unused``: whether parameters may be without a gradient. ``static_graph``: whether it is always the same ones.

    ``buffer_bytes``: the size of a buffer for so many bytes of gradients. ``known``: the parameters that are the same on all
    ranks.
    ``take_turn``: called before anything of a pass is submitted. ``must_start_anew``: the ranks have found that they differ, so
    all of them have to call ``manage`` again.
    """

    def __init__(
        self,
        operations: NamedOperations,
        find_unused: bool,
        static_graph: bool,
        buffer_bytes: Callable[[int], int],
        known: KnownParameters,
    ) -> None:
        self.take_turn: Callable[[], Turn] = Turn
        self.must_start_anew = False
        self._known = known
        self.logging_data = DDPLoggingData()
        self._turn = Turn()
        self._begun_ns = 0
        self._operations = operations
        self._find_unused = find_unused or static_graph
        self._is_static = static_graph
        self._buffer_bytes = buffer_bytes
        self._parameters: list[NamedParameter] = []
        self._arenas: GradientArenas | None = None
        self._accumulators: dict[int, Any] = {}
        self._hooks: list[Any] = []
        self._owners_seen = -1
        self._pass = _Pass.NOT_OURS
        self._is_started = False
        self._placed: list[int] = []
        self._expecting = False
        self._rest: _Rest | None = None
        self._averaging: Averaging | None = None
        self._interrupted: Averaging | None = None
        self._uncalled: Callable[[], None] | None = None
        self._awaited: Callable[[], None] | None = None
        self._ending: weakref.ref[_Ending] | None = None
        self._order = OrderWatch()
        self._error: Exception | None = None
        # Autograd has a thread for each accelerator, and hooks are called in that of their gradient.
        self._hooked = threading.RLock()

    def manage(self, parameters: Iterable[NamedParameter]) -> None:
        """From now on these are the parameters of the module, and those that are not frozen have slots. Gradients are kept.

        Raises TypeError for a dtype that cannot be averaged.
        """
        everything = list(parameters)
        trainable = [(name, parameter) for name, parameter in everything if parameter.requires_grad]
        total = sum(parameter.numel() * gradient_dtype(parameter).itemsize for _, parameter in trainable)
        order = range(len(trainable))[::-1]
        arenas = GradientArenas(trainable, order, self._buffer_bytes(total))
        arenas.take_over(self._arenas)
        # Nothing has changed until here, where there may be no memory.
        self.close()
        self._arenas, self._parameters = arenas, trainable
        owners.add([parameter for _, parameter in trainable])
        self._added = self._known.unknown_of(everything)
        self.must_start_anew = False
        self._used: set[int] = set()
        self._unused: dict[int, torch.Tensor | None] = {}
        self._arrivals: list[int] = []
        self._versions: dict[int, tuple[torch.Tensor, int]] = {}
        self._order = OrderWatch()
        self._statics: dict[frozenset[int], StaticGraph] = {}
        self._passes_frozen = 0
        self._state(order)
        for index, (_, parameter) in enumerate(trainable):
            accumulator = self._accumulators[index] = graph.accumulator(parameter)
            self._hooks.append(accumulator.register_hook(weakly(Reducer.arrive, self, index)))

    def covers(self, parameters: Iterable[NamedParameter]) -> bool:
        """Whether all of these that are not frozen have slots, so that ``freeze`` is enough."""
        known = {id(parameter) for _, parameter in self._parameters}
        return all(id(parameter) in known for _, parameter in parameters if parameter.requires_grad)

    def freeze(self) -> None:
        """Some parameters may have been frozen or thawed since the last pass."""
        frozen = frozenset(
            index for index, (_, parameter) in enumerate(self._parameters) if not parameter.requires_grad
        )
        if frozen != self.arenas.frozen:
            self._set_frozen(frozen)

    @property
    def is_wasteful(self) -> bool:
        """Whether the slots of frozen parameters have been sent for so long that arenas without them are better."""
        return bool(self.arenas.frozen) and self._passes_frozen >= FROZEN_FOR_GOOD

    def close(self) -> None:
        """Lets go of the parameters. Their gradients stay as they are."""
        for hook in self._hooks:
            hook.remove()
        if self._hooks:
            owners.remove([parameter for _, parameter in self._parameters])
        self._hooks.clear()
        self._accumulators.clear()

    def settle_interrupted(self) -> None:
        """Waits for what an interrupted backward pass left open, so that the gradients can be used again."""
        if self._interrupted is not None:
            self._interrupted.wait()
            self._interrupted = None
            self.arenas.give_back()
        passes.all_catch_up()

    def catch_up(self, waits: bool) -> None:
        """What is left of a pass whose end was interrupted."""
        step = self._awaited if waits else self._uncalled
        try:
            if step is not None:
                step()
        except Exception as error:
            self._owe_nothing()
            _log.debug("%s: the pass whose end was interrupted has failed: %s", self._operations.here, error)

    def _owe_nothing(self) -> None:
        """The pass has failed, on every rank."""
        self._uncalled = self._awaited = None
        self._order.restart()

    @untraced
    def watch(self, output: Any, averages: bool) -> None:
        """Before the backward pass: marks where it will begin. ``averages``: whether it averages, or only adds up."""
        self._expecting = self._expecting or averages
        for tensor in graph.tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(weakly(Reducer.reach_output, self, averages))  # type: ignore[no-untyped-call]

    @property
    def operations(self) -> NamedOperations:
        return self._operations

    @property
    def is_in_pass(self) -> bool:
        """Whether a backward pass is on that is this wrapper's."""
        return self._ending is not None

    @property
    def averaging(self) -> Averaging | None:
        """The pass that is on, if one is and it averages."""
        return self._averaging

    @property
    def arenas(self) -> GradientArenas:
        assert self._arenas is not None, "manage comes first"
        return self._arenas

    def _begin(self, kind: _Pass) -> None:
        """The first sign of a backward pass, and any later one. Leaves the callback for its end."""
        is_first = self._ending is None
        if is_first:
            self.settle_interrupted()
            self._begun_ns = time.monotonic_ns()
            self._leave_callback()
        if kind is _Pass.AVERAGES or self._pass is _Pass.NOT_OURS:
            self._pass = kind
        if is_first:
            # There may be no memory. The other ranks hear of it at the end.
            self._record_errors(self._prepare)

    def _leave_callback(self) -> None:
        ending = _Ending(self)
        try:
            self._ending = weakref.ref(ending, self.on_interruption)
            passes.join(self)
            torch.autograd.Variable._execution_engine.queue_callback(ending)
        finally:
            # No frame that an error may keep has it.
            del ending

    def _tell_of(self, interruption: BaseException) -> None:
        """KeyboardInterrupt, before anything was submitted: the other ranks hear of it when the engine drops the callback."""
        is_told = self._averaging is not None or (self._is_started and self.take_turn is not Turn)
        if self._ending is not None and self._pass is _Pass.AVERAGES and not is_told:
            self._error = ShoalError(f"{self._operations.here}: interrupted by {type(interruption).__name__}")
            self._record_errors(self._look_ahead)

    def _prepare(self) -> None:
        if self._owners_seen != owners.changes():
            self._owners_seen = owners.changes()
            self.arenas.keep_apart(owners.shared([parameter for _, parameter in self._parameters]))
        self.arenas.prepare()

    def reach_output(self, averages: bool) -> None:
        """The backward pass has reached an output of the module."""
        with self._hooked:
            try:
                self._begin(_Pass.AVERAGES if averages else _Pass.ADDS)
                if averages and not self._is_started:
                    self._record_errors(self._look_ahead)
            except BaseException as interruption:
                self._tell_of(interruption)
                raise

    def arrive(self, index: int) -> None:
        """A parameter's gradient has been accumulated into ``param.grad``.

        What goes wrong is raised at the end of the pass: until then other ranks may need what this one has to give.
        """
        # What a pass costs here it costs for each parameter, on every rank.
        with self._hooked:
            if self._find_unused and self._parameters[index][1].grad is not None:
                self._used.add(index)
            if self._pass is _Pass.NOT_OURS and not self._expecting:
                return
            try:
                if self._pass is _Pass.NOT_OURS:
                    self._begin(_Pass.AVERAGES)
                try:
                    self._take(index)
                except Exception as error:
                    self._error = self._error or error
                if self._error is not None and self._pass is _Pass.AVERAGES and not self._is_started:
                    self._record_errors(self._start)
            except BaseException as interruption:
                self._tell_of(interruption)
                raise

    def finish(self) -> None:
        """The end of the backward pass. Raises what went wrong in it."""
        passes.all_submit_rest(self)
        averaging, error, rest = self._averaging, self._error, self._rest
        is_last = self._forget_pass()
        if averaging is not None:
            assert rest is not None, "it has been submitted"
            self._conclude(averaging, rest, is_last)
        else:
            self.arenas.give_back()
            if error is not None:
                raise error
        if is_last:
            passes.all_catch_up()

    def submit_rest(self) -> None:
        """All gradients of the pass are there, or will not come: submits what is open for want of those."""
        if self._averaging is not None and self._rest is None:
            self._rest = self._completed(self._averaging, self._error)

    def shadow(self, turn: Turn) -> None:
        """Takes part in a pass of the other ranks without gradients of its own, which count as zero.

        Raises what a backward pass would have raised. Gradients are unspecified afterwards.
        """
        self.settle_interrupted()
        self._turn, self._begun_ns = turn, time.monotonic_ns()
        self._used.clear()
        error: Exception | None = None
        try:
            self._prepare()
        except Exception as problem:
            error = problem
        self.arenas.end_pass()
        averaging = Averaging(self._operations, self.arenas, self._statement(), () if self._find_unused else None)
        for index in self._trainable if error is None else ():
            self.arenas.slot(index).zero_()
            self._unused[index] = None
            averaging.ready(index)
        self._conclude(averaging, self._completed(averaging, error), is_last=True)

    def _completed(self, averaging: Averaging, error: Exception | None) -> "_Rest":
        computed_ns = time.monotonic_ns()
        used = torch.zeros(len(self._parameters), dtype=torch.uint8, device="cpu")
        return _Rest(computed_ns, used, error or self._account_for_missing(averaging, used))

    def _conclude(self, averaging: Averaging, rest: "_Rest", is_last: bool) -> None:
        """``is_last``: no other wrapper has its end of the pass before it."""
        arrivals = self._arrivals
        self._uncalled = partial(self._catch_up, averaging, rest.error, arrivals)
        try:
            self._wait(averaging, rest.error)
            # Which the other ranks do not hear of: they go on to the end of the pass.
            touched = self._touched()
            # Or the arenas could not give their places away where the order changes.
            self._versions.clear()
            if touched is None:
                averaging.scale(self._turn.scale)
            self.arenas.give_back()
            if touched is None:
                self._settle(rest.used)
            self._end_well(arrivals)
            if not is_last:
                passes.owe(self)
            elif self._awaited is not None:
                self._awaited()
        except Exception:
            self._owe_nothing()
            raise
        except BaseException:
            # A wait was interrupted (KeyboardInterrupt). Nothing else is wrong, and the other ranks go on.
            passes.owe(self)
            raise
        finally:
            self._unused.clear()
            self._arrivals, self._versions = [], {}
        if touched is not None:
            raise touched
        self.logging_data += one_pass(
            averaging, self.arenas.nbytes, self._begun_ns, rest.computed_ns, time.monotonic_ns()
        )

    def _wait(self, averaging: Averaging, error: Exception | None) -> None:
        try:
            averaging.finish(error)
        except Exception:
            self.arenas.give_back()
            raise
        finally:
            self.must_start_anew = self.must_start_anew or averaging.disagreed

    def _catch_up(self, averaging: Averaging, error: Exception | None, arrivals: list[int]) -> None:
        """As ``_conclude``, but for the gradients, which nobody wants any more."""
        self._wait(averaging, error)
        self.arenas.give_back()
        self._end_well(arrivals)

    def _end_well(self, arrivals: list[int]) -> None:
        """Leaves it to ``_awaited`` to wait for the order, where that is due."""
        self._uncalled = None
        self._used.clear()
        self._known.learn(self._added)
        self._added.clear()
        if self._static is not None:
            self._static.learn(arrivals)
        self._passes_frozen += 1
        self._watch_order(arrivals)

    def _forget_pass(self) -> bool:
        """Whether no other wrapper is in the pass any more."""
        if self._averaging is not None:
            self._expecting = False
        self._pass = _Pass.NOT_OURS
        self._is_started = False
        self._placed.clear()
        self.arenas.end_pass()
        self._averaging = self._ending = self._error = self._rest = None
        return passes.leave(self)

    @property
    def _trainable(self) -> list[int]:
        """The parameters that are not frozen."""
        frozen = self.arenas.frozen
        return [index for index in range(len(self._parameters)) if index not in frozen]

    @property
    def _static(self) -> StaticGraph | None:
        """For the parameters that are frozen now."""
        return self._statics.setdefault(self.arenas.frozen, StaticGraph()) if self._is_static else None

    def _take(self, index: int) -> None:
        if self._error is not None:
            return
        arenas, (name, parameter) = self.arenas, self._parameters[index]
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise ShoalError(complaints.is_sparse(self._operations.here, name))
        if gradient is not None and gradient.requires_grad:
            raise ShoalError(complaints.has_a_graph(self._operations.here, name))
        if self._averaging is not None and self._averaging.is_sent(index):
            raise ShoalError(complaints.came_too_late(self._operations.here, name))
        del gradient  # the arenas look who else has it
        placed = arenas.place(index)
        self._unused.pop(index, None)
        if self._pass is _Pass.ADDS:
            self._placed.append(index)
            return
        if self._averaging is None:
            self._start()
        if index in arenas.frozen:
            # A nested pass through a graph of before it was frozen.
            raise ShoalError(complaints.came_too_late(self._operations.here, name))
        self._count_in(index, placed)

    def _count_in(self, index: int, placed: torch.Tensor | None) -> None:
        """The gradient is in its slot, in a pass that averages. ``placed``: what is there as ``param.grad``."""
        averaging, static = self._averaging, self._static if self._is_static else None
        assert averaging is not None, "the pass has been started"
        if trace.recording():
            trace.instant("gradient ready", parameter=self._parameters[index][0])
        self._arrivals.append(index)
        if static is None or static.arrived(index):
            if placed is not None:
                self._versions[index] = placed, placed._version
            averaging.ready(index)

    def _look_ahead(self) -> None:
        """Starts, if this pass accumulates gradients at all."""
        reached = self._reached(self._trainable if self._find_unused else self._trainable[:1])
        if reached:
            self._start(reached if self._find_unused else None)

    def _reached(self, indices: Iterable[int]) -> set[int]:
        """Which of these gradients will come in this pass."""
        asked = list(indices)
        come = graph.reached(self._accumulators[index] for index in asked)
        return {index for index, is_reached in zip(asked, come, strict=True) if is_reached}

    def _start(self, reached: set[int] | None = None) -> None:
        """``reached``: which gradients will come, where that is known. Those that will not need not be waited for.

        Where something has gone wrong before, nothing is submitted but that, at the end.
        """
        self._is_started = True
        thawed = self._reached(self.arenas.frozen)
        if thawed:
            # The graph is older than the last forward pass, which has found them frozen.
            self._set_frozen(self.arenas.frozen - thawed)
            reached = None if reached is None else reached | thawed
        self._turn = self.take_turn()
        if self._error is not None:
            self._averaging = Averaging(
                self._operations, self.arenas, self._statement(), () if self._find_unused else None
            )
            return
        everything = set(self._trainable)
        if self._static is not None:
            reached = self._static.start()
        come = everything if reached is None else reached
        expected = come | (self._used & everything) if self._find_unused else None
        self._averaging = Averaging(self._operations, self.arenas, self._statement(), expected)
        for index in sorted(everything - come):
            self._contribute_unused(self._averaging, index)
        for index in self._placed:
            self._count_in(index, self.arenas.placed(index))
        self._placed.clear()

    def _contribute_unused(self, averaging: Averaging, index: int) -> None:
        self._unused[index] = self.arenas.contribute_unused(index)
        averaging.ready(index)

    def _account_for_missing(self, averaging: Averaging, used: torch.Tensor) -> Exception | None:
        """At the end: the error if a gradient has not come, or, where that may be, what stands in for it."""
        missing = [index for index in self._trainable if not averaging.is_ready(index)]
        arrived = set(self._arrivals)
        if not self._find_unused:
            expected = [index for index in missing if self.arenas.touched[index]]
            names = [self._parameters[index][0] for index in expected]
            return ShoalError(complaints.did_not_come(self._operations.here, names)) if names else None
        try:
            for index in missing:
                if index in arrived:
                    averaging.ready(index)
                else:
                    self._contribute_unused(averaging, index)
            for index in self._arrivals:
                if not averaging.will_be_sent(index):
                    return ShoalError(complaints.came_too_late(self._operations.here, self._parameters[index][0]))
            used[sorted(self._used)] = 1
            averaging.exchange_used(used)
        except Exception as failure:
            return failure
        return None

    def _touched(self) -> ShoalError | None:
        """The error if the program has written to a gradient that was on its way."""
        arenas = self.arenas
        changed = [
            index
            for index, (gradient, version) in self._versions.items()
            if gradient._version != version and arenas.is_in_slot(index, gradient)
        ]
        changed += arenas.written_while_lent()
        if not changed:
            return None
        return ShoalError(complaints.was_changed(self._operations.here, self._parameters[changed[0]][0]))

    def _settle(self, used: torch.Tensor) -> None:
        """Every ``param.grad`` becomes what was averaged. ``used``: 1 where any rank had a gradient, if unused ones are looked for."""
        arenas, anywhere = self.arenas, used.tolist()
        for index in dict.fromkeys(self._arrivals):
            if index not in self._unused and (anywhere[index] or not self._find_unused):
                arenas.settle(index)
        for index, saved in self._unused.items():
            arenas.settle_unused(index, saved, used_elsewhere=bool(anywhere[index]))

    def _watch_order(self, arrivals: list[int]) -> None:
        """The pass has ended well. Where the order is due, that of the turn's root becomes the order in every arena."""
        due = self._order.is_due
        # Where parameters are frozen for a while, the order tells nothing of theirs.
        self._order.passed([] if self.arenas.frozen and self._order.is_known else arrivals)
        if not due:
            return
        now = self.arenas.order
        wanted = self._order.settled_on(now) if self._operations.group.rank == self._turn.root else now
        if self._order.is_known and not self.arenas.changes_buffers(wanted):
            wanted = now
        order = torch.tensor(wanted, dtype=torch.int64, device="cpu")
        sent = self._operations.broadcast(ORDER, order, self._turn.root)
        self._awaited = partial(self._take_order, sent, order, now)

    def _take_order(self, sent: AnyHandle, order: torch.Tensor, now: list[int]) -> None:
        """``sent``: its broadcast. ``now``: the order before. What was interrupted in here can be done again."""
        sent.wait()
        received = order.tolist()
        if sorted(received) != list(range(len(now))):
            raise ShoalError(f"{self._operations.here}: the order of the gradients that was broadcast is damaged")
        renewed = received != now
        if renewed and self._order.is_known:
            self.logging_data += DDPLoggingData(order_renewals=1)
            trace.instant("order of gradients renewed")
            _log.info("%s: the order of the gradients has changed for good and was renewed", self._operations.here)
        if renewed:
            self.arenas.reorder(received)
        self._order.looked(renewed)
        self._state(received)
        self._awaited = None

    def _set_frozen(self, frozen: frozenset[int]) -> None:
        self.arenas.freeze(frozen)
        self._passes_frozen = 0
        self._state(self.arenas.order)

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
        buffers = [buffer.memory.nbytes for buffer in self.arenas.buffers]
        return (
            f"{len(self._parameters)} parameters {known}{due}, find_unused_parameters={self._find_unused}, "
            f"buffers={buffers}"
        )

    def _describe(self, index: int) -> str:
        name, parameter = self._parameters[index]
        frozen = " frozen" if index in self.arenas.frozen else ""
        return describe(name, parameter, self.arenas.device_number(index)) + frozen

    def _record_errors(self, part: Callable[..., None], *arguments: int) -> None:
        try:
            part(*arguments)
        except Exception as error:
            self._error = self._error or error

    def on_interruption(self, _: object) -> None:
        """The callback is gone. If it was never called, the pass has ended with an error."""
        if self._ending is None:
            return
        averaging, error, rest, arrivals = self._averaging, self._error, self._rest, self._arrivals
        self._forget_pass()
        self._unused.clear()
        self._arrivals, self._versions = [], {}
        if averaging is not None and rest is not None and rest.error is None:
            # Another wrapper's end of the pass has failed, or this one's was interrupted. Everything is submitted, and the other ranks go on.
            self._uncalled = partial(self._catch_up, averaging, None, arrivals)
            passes.owe(self)
        elif averaging is not None:
            self._order.restart()
            reason = f"{self._operations.here}: the backward pass ended with an error before all gradients were there"
            averaging.abandon(reason if error is None else f"{reason}: {error}")
            self._interrupted = averaging
        else:
            self.arenas.give_back()


class _Ending:
    """The callback for the end of a backward pass; an object, so that its end can be watched."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer

    def __call__(self) -> None:
        reducer = self._reducer
        try:
            reducer.finish()
        except BaseException:
            if reducer.is_in_pass:
                # Interrupted at once. Who keeps the error keeps this object, whose end would tell of it.
                try:
                    reducer.submit_rest()
                finally:
                    reducer.on_interruption(self)
            raise


class _Rest(NamedTuple):
    """How the gradients of a pass have come: when the last was there, which there were, and what went wrong."""

    computed_ns: int
    used: torch.Tensor
    error: Exception | None
