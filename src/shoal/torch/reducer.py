"""From gradients as autograd delivers them to gradients that are averaged, inside ``loss.backward()``.

The life of a backward pass:

    an output's hook        is the first sign of it; a callback is left with the engine for its end
    an accumulator's hook   puts the gradient into its slot in the arena; a buffer that is complete is submitted
    the callback            checks that all gradients came, waits for all results, and raises what went wrong

The accumulator is the node of the graph that adds to ``param.grad``. Its hooks come after those of the parameter, so
the program's own hooks have done what they do to a gradient before it is averaged, whenever they were registered.

A pass averages if it goes through an output of a forward pass that was to be averaged, or if it comes after such a
forward pass and none has averaged since: that is PyTorch's rule, and finds outputs that nobody could see. Every other
pass is the program's own, and is left alone.

The engine holds the only reference to the callback. If the pass ends with an exception, the callback is destroyed
without being called: that is how the ranks that wait for this one learn of it at once.

The first pass of a layout records in which order gradients arrive at the group's first member; its order is broadcast
and becomes the order in every arena, and seldom another one later (gradients/arrival_order.py). What arrives in another
order is put where it belongs all the same.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from shoal.errors import ShoalError
from shoal.gradients.arrival_order import SentOrder
from shoal.job import unheard
from shoal.torch import complaints, graph, passes
from shoal.torch.arena import GradientArenas, NamedParameter
from shoal.torch.averaging import TensorAveraging, averaging_of
from shoal.torch.backward_pass import BackwardPass, Turn
from shoal.torch.broadcast_state import Replaced
from shoal.torch.compiled import untraced
from shoal.torch.logging_data import DDPLoggingData, one_pass
from shoal.torch.managed_parameters import ManagedParameters
from shoal.torch.narrowing import WireFormat
from shoal.torch.new_parameters import KnownParameters
from shoal.torch.node_passes import NodePasses
from shoal.torch.tensor_operations import TensorOperations
from shoal.torch.weak_hooks import weakly

_log = logging.getLogger("shoal")

_T = TypeVar("_T")


class Reducer:
    """``find_unused``: whether parameters may be without a gradient. ``static_graph``: whether it is always the same
    ones.

    ``buffer_bytes``: the size of a buffer for so many bytes of gradients. ``known``: the parameters that are the same
    on all ranks.
    ``nodes``: where nodes sum first.
    ``take_turn``: called before anything of a pass is submitted. ``must_start_anew``: the ranks have found that they
    differ, so all of them have to call ``manage`` again. ``wire``: how gradients travel.
    """

    def __init__(
        self,
        operations: TensorOperations,
        find_unused: bool,
        static_graph: bool,
        buffer_bytes: Callable[[int], int],
        known: KnownParameters,
        wire: WireFormat,
        nodes: NodePasses | None,
    ) -> None:
        self.take_turn: Callable[[], Turn] = Turn
        self.must_start_anew = False
        self.logging_data = DDPLoggingData()
        self._known = known
        self._operations = operations
        self._find_unused = find_unused or static_graph
        self._is_static = static_graph
        self._buffer_bytes = buffer_bytes
        self._wire = wire
        self._nodes = nodes
        self._managed: ManagedParameters | None = None
        # The pass that is on, if one is that is this wrapper's, and what is called at its end.
        self._pass: BackwardPass | None = None
        self._ending: weakref.ref[_Ending] | None = None
        self._expecting = False
        self._interrupted: TensorAveraging | None = None
        self._uncalled: Callable[[], None] | None = None
        self._awaited: Callable[[], None] | None = None
        self._also_awaited: Sequence[Replaced] = ()
        # Autograd has a thread for each accelerator, and hooks are called in that of their gradient.
        self._hooked = threading.RLock()

    # --- Between passes ---

    def manage(self, parameters: Iterable[NamedParameter]) -> None:
        """From now on these are the parameters of the module, and those that are not frozen have slots. Gradients are
        kept.

        Raises TypeError for a dtype that cannot be averaged.
        """
        managed = ManagedParameters(
            parameters,
            self._managed,
            self._operations,
            self._known,
            self._find_unused,
            self._is_static,
            self._buffer_bytes,
            self._wire,
            None if self._nodes is None else self._nodes.own,
        )
        # Nothing has changed until here, where there may be no memory.
        self.close()
        self._managed = managed
        self.must_start_anew = False
        managed.open(lambda index: weakly(Reducer.arrive, self, index))

    def also_awaits(self, others: Sequence[Replaced]) -> None:
        """The next pass that averages comes to nothing if one of these fails: it computes with them."""
        self._also_awaited = others

    def close(self) -> None:
        """Lets go of the parameters. Their gradients stay as they are."""
        if self._managed is not None:
            self._managed.close()

    def settle_interrupted(self) -> None:
        """Waits for what an interrupted backward pass left open, so that the gradients can be used again."""
        if self._interrupted is not None:
            self._end(self._interrupted.wait)
            self._interrupted = None
        passes.all_catch_up()

    @untraced
    def watch(self, output: Any, averages: bool) -> None:
        """Before the backward pass: marks where it will begin. ``averages``: whether it averages, or only adds up."""
        self._expecting = self._expecting or averages
        for tensor in graph.tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(weakly(Reducer.reach_output, self, averages))  # type: ignore[no-untyped-call]

    @property
    def operations(self) -> TensorOperations:
        return self._operations

    @property
    def managed(self) -> ManagedParameters:
        assert self._managed is not None, "manage comes first"
        return self._managed

    @property
    def arenas(self) -> GradientArenas:
        return self.managed.arenas

    @property
    def is_in_pass(self) -> bool:
        """Whether a backward pass is on that is this wrapper's."""
        return self._ending is not None

    @property
    def averaging(self) -> TensorAveraging | None:
        """The pass that is on, if one is and it averages."""
        return None if self._pass is None else self._pass.averaging

    # --- The pass ---

    def reach_output(self, averages: bool) -> None:
        """The backward pass has reached an output of the module."""
        with self._hooked:
            try:
                now = self._begin(averages)
                if averages and not now.is_started:
                    self._record_errors(now, self._look_ahead)
            except BaseException as interruption:
                self._tell_of(interruption)
                raise

    def arrive(self, index: int) -> None:
        """A parameter's gradient has been accumulated into ``param.grad``.

        What goes wrong is raised at the end of the pass: until then other ranks may need what this one has to give.
        """
        # What a pass costs here it costs for each parameter, on every rank.
        with self._hooked:
            managed, now = self._managed, self._pass
            assert managed is not None, "it has made this hook"
            if self._find_unused and managed.parameters[index][1].grad is not None:
                managed.used.add(index)
            if now is None and not self._expecting:
                return
            try:
                if now is None:
                    now = self._begin(True)
                try:
                    self._take(managed, now, index)
                except Exception as error:
                    now.error = now.error or error
                if now.error is not None and now.averages and not now.is_started:
                    self._record_errors(now, self._start)
            except BaseException as interruption:
                self._tell_of(interruption)
                raise

    def shadow(self, turn: Turn) -> None:
        """Takes part in a pass of the other ranks without gradients of its own, which count as zero.

        Raises what a backward pass would have raised. Gradients are unspecified afterwards.
        """
        self.settle_interrupted()
        now = BackwardPass(self.managed, self._operations.here, averages=True)
        now.turn = turn
        self.managed.used.clear()
        self._record_errors(now, lambda _: self.managed.prepare())
        self.arenas.end_pass()
        now.averaging = self._averaging_of(() if self._find_unused else None)
        if now.error is None:
            now.contribute_zeros()
        now.complete()
        self._conclude(now, is_last=True)

    def submit_rest(self) -> None:
        """All gradients of the pass are there, or will not come: submits what is open for want of those."""
        now = self._pass
        if now is not None and now.averaging is not None and now.arrived is None:
            now.complete()

    def _begin(self, averages: bool) -> BackwardPass:
        """The first sign of a backward pass, and any later one. Leaves the callback for its end."""
        is_first = self._ending is None
        if is_first:
            self.settle_interrupted()
            begun_ns = time.monotonic_ns()
            self._leave_callback()
        now = self._pass
        if now is None:
            now = self._pass = BackwardPass(self.managed, self._operations.here, averages)
        now.averages = now.averages or averages
        if is_first:
            now.begun_ns = begun_ns
            # There may be no memory, or what came before has failed. The other ranks hear of it at the end.
            self._record_errors(now, lambda _: unheard.raise_first())
            self._record_errors(now, lambda _: self.managed.prepare())
        return now

    def _leave_callback(self) -> None:
        ending = _Ending(self)
        try:
            self._ending = weakref.ref(ending, self.on_interruption)
            passes.join(self)
            torch.autograd.Variable._execution_engine.queue_callback(ending)
        finally:
            # No frame that an error may keep has it.
            del ending

    def _look_ahead(self, now: BackwardPass) -> None:
        """Starts, if this pass accumulates gradients at all."""
        trainable = self.managed.trainable
        reached = self.managed.reached(trainable if self._find_unused else trainable[:1])
        if reached:
            self._start(now, reached if self._find_unused else None)

    def _start(self, now: BackwardPass, reached: set[int] | None = None) -> None:
        """``reached``: which gradients will come, where that is known. Those that will not need not be waited for.

        Where something has gone wrong before, nothing is submitted but that, at the end.
        """
        now.is_started = True
        managed = self.managed
        thawed = managed.thaw_reached()
        reached = None if reached is None else reached | thawed
        now.turn = self.take_turn()
        if now.error is not None:
            now.averaging = self._averaging_of(() if self._find_unused else None)
            return
        everything = set(managed.trainable)
        if managed.static is not None:
            reached = managed.static.start()
        come = everything if reached is None else reached
        now.averaging = self._averaging_of(come | (managed.used & everything) if self._find_unused else None)
        for index in sorted(everything - come):
            now.contribute_unused(index)
        for index in now.placed:
            now.count_in(index, managed.arenas.placed(index))
        now.placed.clear()

    def _averaging_of(self, expected: Iterable[int] | None) -> TensorAveraging:
        return averaging_of(self._operations, self.managed, expected, self._nodes)

    def _take(self, managed: ManagedParameters, now: BackwardPass, index: int) -> None:
        if now.error is not None:
            return
        arenas, (name, parameter) = managed.arenas, managed.parameters[index]
        gradient = parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise ShoalError(complaints.is_sparse(self._operations.here, name))
        if gradient is not None and gradient.requires_grad:
            raise ShoalError(complaints.has_a_graph(self._operations.here, name))
        if now.averaging is not None and now.averaging.progress.is_sent(index):
            raise ShoalError(complaints.came_too_late(self._operations.here, name))
        del gradient  # the arenas look who else has it
        placed = arenas.place(index)
        now.unused.pop(index, None)
        if not now.averages:
            now.placed.append(index)
            return
        if now.averaging is None:
            self._start(now)
        if index in arenas.frozen:
            # A nested pass through a graph of before it was frozen.
            raise ShoalError(complaints.came_too_late(self._operations.here, name))
        now.count_in(index, placed)

    def _record_errors(self, now: BackwardPass, part: Callable[[BackwardPass], None]) -> None:
        try:
            part(now)
        except Exception as error:
            now.error = now.error or error

    def _tell_of(self, interruption: BaseException) -> None:
        """KeyboardInterrupt, before anything was submitted: the other ranks hear of it when the engine drops the
        callback.
        """
        now = self._pass
        if self._ending is None or now is None or not now.averages:
            return
        is_told = now.averaging is not None or (now.is_started and self.take_turn is not Turn)
        if not is_told:
            now.error = ShoalError(f"{self._operations.here}: interrupted by {type(interruption).__name__}")
            self._record_errors(now, self._look_ahead)

    # --- The end of a pass ---

    def finish(self) -> None:
        """The end of the backward pass. Raises what went wrong in it."""
        passes.all_submit_rest(self)
        ended = self._pass
        is_last = self._forget_pass()
        if ended is not None and ended.averaging is not None:
            self._conclude(ended, is_last)
        else:
            self._end(_nothing)
            if ended is not None and ended.error is not None:
                raise ended.error
        if is_last:
            passes.all_catch_up()

    def on_interruption(self, _: object) -> None:
        """The callback is gone. If it was never called, the pass has ended with an error."""
        if self._ending is None:
            return
        ended = self._pass
        self._forget_pass()
        if ended is None or ended.averaging is None:
            self._end(_nothing)
        elif ended.arrived is not None and ended.arrived.error is None:
            # Another wrapper's end of the pass has failed, or this one's was interrupted. Everything is submitted, and
            # the other ranks go on.
            self._uncalled = partial(self._catch_up, ended.averaging, None, ended.arrivals, ended.turn.root)
            passes.owe(self)
        else:
            self.managed.order.restart()
            reason = f"{self._operations.here}: the backward pass ended with an error before all gradients were there"
            ended.averaging.abandon(reason if ended.error is None else f"{reason}: {ended.error}")
            self._interrupted = ended.averaging
        if ended is not None:
            ended.forget()

    def catch_up(self, waits: bool) -> None:
        """What is left of a pass whose end was interrupted."""
        step = self._awaited if waits else self._uncalled
        try:
            if step is not None:
                step()
        except Exception as error:
            self._owe_nothing()
            _log.debug("%s: the pass whose end was interrupted has failed: %s", self._operations.here, error)

    def _forget_pass(self) -> bool:
        """Whether no other wrapper is in the pass any more."""
        if self.averaging is not None:
            self._expecting = False
        self._pass = self._ending = None
        self.arenas.end_pass()
        return passes.leave(self)

    def _conclude(self, ended: BackwardPass, is_last: bool) -> None:
        """``is_last``: no other wrapper has its end of the pass before it."""
        averaging, arrived, arrivals, root = ended.averaging, ended.arrived, ended.arrivals, ended.turn.root
        assert averaging is not None, "it averages"
        assert arrived is not None, "everything has been submitted"
        self._uncalled = partial(self._catch_up, averaging, arrived.error, arrivals, root)

        def wait() -> ShoalError | None:
            self._wait(averaging, arrived.error)
            # Which the other ranks do not hear of: they go on to the end of the pass.
            written_to = ended.written_to()
            if written_to is None:
                averaging.scale(ended.turn.scale)
            return written_to

        try:
            written_to = self._end(wait)
            if written_to is None:
                ended.settle(arrived.used)
            self._end_well(arrivals, root)
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
            ended.forget()
        if written_to is not None:
            raise written_to
        self.logging_data += one_pass(
            averaging, self.arenas.nbytes, ended.begun_ns, arrived.computed_ns, time.monotonic_ns()
        )

    def _catch_up(self, averaging: TensorAveraging, error: Exception | None, arrivals: list[int], root: int) -> None:
        """As ``_conclude``, but for the gradients, which nobody wants any more."""
        self._end(lambda: self._wait(averaging, error))
        self._end_well(arrivals, root)

    def _end(self, wait: Callable[[], _T]) -> _T:
        """Where every pass ends. ``wait`` comes back when nothing reads or writes the arenas any more, with an
        Exception or not.

        Slots that were lent to the pass have their values again then. Not so where ``wait`` itself was interrupted.
        """
        try:
            outcome = wait()
        except Exception:
            self.arenas.give_back()
            raise
        self.arenas.give_back()
        return outcome

    def _wait(self, averaging: TensorAveraging, error: Exception | None) -> None:
        others, self._also_awaited = self._also_awaited, ()
        try:
            averaging.finish(error)
        except Exception:
            self._undo(others)
            raise
        finally:
            self.must_start_anew = self.must_start_anew or averaging.disagreed
        failure = self._undo(others)
        if failure is not None:
            raise failure

    def _undo(self, others: Sequence[Replaced]) -> Exception | None:
        """What has failed of what the host has not waited for, which is as it was before afterwards."""
        if self._operations.waits_in_stream:
            return None
        failures = [failure for failure in [replaced.undo_if_failed() for replaced in others] if failure is not None]
        return failures[0] if failures else None

    def _end_well(self, arrivals: list[int], root: int) -> None:
        """Leaves it to ``_awaited`` to wait for the order, where that is due."""
        self._uncalled = None
        sent = self.managed.ended_well(arrivals, root)
        if sent is not None:
            self._awaited = partial(self._take_order, sent)

    def _take_order(self, sent: SentOrder) -> None:
        if self.managed.take_order(sent):
            self.logging_data += DDPLoggingData(order_renewals=1)
        self._awaited = None

    def _owe_nothing(self) -> None:
        """The pass has failed, on every rank."""
        self._uncalled = self._awaited = None
        self.managed.order.restart()


def _nothing() -> None:
    """A pass that has submitted nothing, or nothing that is left to be waited for."""


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
