"""The parameters that a wrapper averages: their arenas, which are frozen, and what the ranks agree on about them.

Made anew where parameters have come or gone, or are of another kind. What was learned of their order begins anew then.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shoal.gradients.agreement import Statement
from shoal.gradients.arrival_order import ArrivalOrder, SentOrder
from shoal.gradients.layout import Extent
from shoal.gradients.layout_statement import LayoutStatement
from shoal.gradients.static_graph import StaticGraph
from shoal.job import trace
from shoal.torch import graph, owners
from shoal.torch.arena import GradientArenas, NamedParameter
from shoal.torch.gradient_format import gradient_dtype
from shoal.torch.module_tensors import describe
from shoal.torch.narrowing import Narrowing, WireFormat
from shoal.torch.new_parameters import KnownParameters, describe_values
from shoal.torch.tensor_operations import TensorOperations

_log = logging.getLogger("shoal")

# After so many passes with the same frozen parameters they get no slots any more. Until then they may be thawed in the
# next step, as a discriminator's are, and to leave them their slots costs a part of a buffer or two.
FROZEN_FOR_GOOD = 20


class ManagedParameters:
    """``parameters``: those of the module. Those that are not frozen have slots, and are known by their index among
    these.

    ``before``: those that were managed until now; their gradients are kept. ``known``: the parameters that are the same
    on all ranks. ``find_unused``, ``is_static``: whether parameters may be without a gradient, and whether it is always
    the same ones.
    ``buffer_bytes``: the size of a buffer for so many bytes of gradients. ``wire``: how they travel. ``own``: as for
    ``GradientArenas``.

    Raises TypeError for a dtype that cannot be averaged. Nothing has changed then.
    """

    def __init__(
        self,
        parameters: Iterable[NamedParameter],
        before: "ManagedParameters | None",
        operations: TensorOperations,
        known: KnownParameters,
        find_unused: bool,
        is_static: bool,
        buffer_bytes: Callable[[int], int],
        wire: WireFormat,
        own: Callable[[int], Extent] | None,
    ) -> None:
        everything = list(parameters)
        self.parameters = [(name, parameter) for name, parameter in everything if parameter.requires_grad]
        total = sum(parameter.numel() * gradient_dtype(parameter).itemsize for _, parameter in self.parameters)
        self.arenas = GradientArenas(self.parameters, range(len(self.parameters))[::-1], buffer_bytes(total), wire, own)
        self.arenas.take_over(None if before is None else before.arenas)
        self.narrowing = Narrowing(wire.error_feedback)
        self._wire = wire
        self.find_unused = find_unused
        self.is_static = is_static
        self.used: set[int] = set()
        """Which gradients came since the last pass that averaged, where unused ones are looked for."""
        self.order = ArrivalOrder()
        self._operations = operations
        self._known = known
        self._added = known.unknown_of(everything)
        self._accumulators: dict[int, Any] = {}
        self._hooks: list[Any] = []
        self._owners_seen = -1
        self._statics: dict[frozenset[int], StaticGraph] = {}
        self._passes_frozen = 0
        self._restate(self.arenas.order)

    def open(self, arrives: Callable[[int], Callable[..., None]]) -> None:
        """``arrives``: makes the hook for the accumulator of a parameter."""
        owners.add([parameter for _, parameter in self.parameters])
        for index, (_, parameter) in enumerate(self.parameters):
            accumulator = self._accumulators[index] = graph.accumulator(parameter)
            self._hooks.append(accumulator.register_hook(arrives(index)))

    def close(self) -> None:
        """Lets go of the parameters. Their gradients stay as they are."""
        for hook in self._hooks:
            hook.remove()
        if self._hooks:
            owners.remove([parameter for _, parameter in self.parameters])
        self._hooks.clear()
        self._accumulators.clear()

    def covers(self, parameters: Iterable[NamedParameter]) -> bool:
        """Whether all of these that are not frozen have slots, so that ``freeze`` is enough."""
        known = {id(parameter) for _, parameter in self.parameters}
        return all(id(parameter) in known for _, parameter in parameters if parameter.requires_grad)

    def freeze(self) -> None:
        """Some parameters may have been frozen or thawed since the last pass."""
        frozen = frozenset(index for index, (_, parameter) in enumerate(self.parameters) if not parameter.requires_grad)
        if frozen != self.arenas.frozen:
            self._set_frozen(frozen)

    def thaw_reached(self) -> set[int]:
        """Frozen parameters whose gradients come in this pass all the same: they are frozen no more."""
        thawed = self.reached(self.arenas.frozen)
        if thawed:
            # The graph is older than the last forward pass, which has found them frozen.
            self._set_frozen(self.arenas.frozen - thawed)
        return thawed

    @property
    def is_wasteful(self) -> bool:
        """Whether the slots of frozen parameters have been sent for so long that arenas without them are better."""
        return bool(self.arenas.frozen) and self._passes_frozen >= FROZEN_FOR_GOOD

    @property
    def trainable(self) -> list[int]:
        """The parameters that are not frozen."""
        frozen = self.arenas.frozen
        return [index for index in range(len(self.parameters)) if index not in frozen]

    @property
    def static(self) -> StaticGraph | None:
        """For the parameters that are frozen now."""
        return self._statics.setdefault(self.arenas.frozen, StaticGraph()) if self.is_static else None

    def reached(self, indices: Iterable[int]) -> set[int]:
        """Which of these gradients will come in this pass."""
        asked = list(indices)
        come = graph.reached(self._accumulators[index] for index in asked)
        return {index for index, is_reached in zip(asked, come, strict=True) if is_reached}

    def prepare(self) -> None:
        """Before a pass writes into the arenas."""
        if self._owners_seen != owners.changes():
            self._owners_seen = owners.changes()
            self.arenas.keep_apart(owners.shared([parameter for _, parameter in self.parameters]))
        self.arenas.prepare()

    def statement(self) -> Statement:
        """What all ranks have to agree on in the next pass."""
        return self._statement.of_pass(self.order.is_due, describe_values(self._added) if self._added else ())

    def ended_well(self, arrivals: list[int], root: int) -> SentOrder | None:
        """A pass has ended well. Where the order is due, that of the group's member ``root``, on its way to all
        ranks.
        """
        self.used.clear()
        self._known.learn(self._added)
        self._added.clear()
        if self.static is not None:
            self.static.learn(arrivals)
        self._passes_frozen += 1
        due = self.order.is_due
        # Where parameters are frozen for a while, the order tells nothing of theirs.
        self.order.passed([] if self.arenas.frozen and self.order.is_known else arrivals)
        return self.order.exchange(self._operations, self.arenas.arrangement, root) if due else None

    def take_order(self, sent: SentOrder) -> bool:
        """Whether the order has changed since the first pass. What was interrupted in here can be done again."""
        received = sent.received()
        renewed = received != sent.before
        has_changed = renewed and self.order.is_known
        if has_changed:
            trace.instant("order of gradients renewed")
            _log.info("%s: the order of the gradients has changed for good and was renewed", self._operations.here)
        if renewed:
            self.arenas.reorder(received)
            self.narrowing.forget()
        self.order.looked(renewed)
        self._restate(received)
        return has_changed

    def _set_frozen(self, frozen: frozenset[int]) -> None:
        self.arenas.freeze(frozen)
        self.narrowing.forget()  # what lies in the slots of those that are frozen is no gradient
        self._passes_frozen = 0
        self._restate(self.arenas.order)

    def _restate(self, order: Sequence[int]) -> None:
        """What all ranks have to agree on, from now on."""
        self._statement = LayoutStatement(
            [self._describe(index) for index in order],
            [buffer.memory.nbytes for buffer in self.arenas.buffers],
            find_unused=self.find_unused,
            order_is_known=self.order.is_known,
            wire=str(self._wire),
        )

    def _describe(self, index: int) -> str:
        name, parameter = self.parameters[index]
        frozen = " frozen" if index in self.arenas.frozen else ""
        return describe(name, parameter, self.arenas.device_number(index)) + frozen
