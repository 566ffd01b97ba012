"""``hvd.DistributedOptimizer``: the program's optimizer, on gradients that are averaged while backward runs.

Each gradient is one operation, which starts when it is complete and ends in ``step``. The core sends small ones together;
so there is no buffer here, and ``groups`` only says which gradients start together.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from shoal.assembly.terms import rank_name
from shoal.horovod.common import basics
from shoal.horovod.common.averages import check_adasum
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.common.util import known_operator, split_list
from shoal.horovod.torch.adasum_optimizer import AdasumOptimizer
from shoal.horovod.torch.allreduce import Reduction
from shoal.horovod.torch.compression import Compression
from shoal.horovod.torch.parameter_hooks import HookedOptimizer, Parameter, names_of, wrap
from shoal.horovod.torch.sparse import sparse_allreduce_async

Groups = int | list[list[torch.Tensor]] | None

# What is on its way. Called, it waits for the average and gives it to the parameter: whether the program has put something
# else in its gradient's place.
Take = Callable[[], bool]


class AveragingOptimizer(HookedOptimizer):
    """Made by ``DistributedOptimizer``. ``step`` waits for the averages, and then is the program's own."""

    def prepare(
        self,
        compression: Any,
        op: ReduceOp,
        gradient_predivide_factor: float,
        groups: Groups,
        sparse_as_dense: bool,
    ) -> None:
        """Before ``begin``."""
        self._compression = compression
        self._op = op
        self._predivide = gradient_predivide_factor
        self._sparse_as_dense = sparse_as_dense
        self._together = _together(groups, self.param_groups)
        self._waits: dict[Parameter, Take] = {}
        self._synchronized = False
        self._should_synchronize = True
        self._has_warned = False

    def forget(self) -> None:
        super().forget()
        self._waits = {}
        self._synchronized = False

    def due(self, parameter: Parameter) -> None:
        group = self._together.get(parameter, (parameter,))
        if all(self._due_in.get(each) == 0 for each in group):
            for each in group:
                self._start(each)

    def synchronize(self) -> None:
        """Waits until all gradients are averaged; those that backward did not reach count as zero.

        For what changes gradients before ``step``, such as clipping; then ``step`` is called inside ``skip_synchronize``.
        A gradient that is not the one that backward has left is lost, with a warning. Raises HorovodInternalError.
        """
        try:
            for parameter in self._required:
                if parameter not in self._waits:
                    self._start(parameter)
            first, replaced = None, []
            for parameter, take in self._waits.items():
                try:
                    if take():
                        replaced.append(self._parameter_names[parameter])
                except RuntimeError as error:
                    first = first or error
            if first is not None:
                raise first
            if replaced and not self._has_warned:
                self._has_warned = True
                _warn_of(replaced, self.process_set)
        finally:
            self.forget()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, ``step`` does not wait: after ``synchronize``."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """The program's own step, on averaged gradients. A ``closure``'s gradients are averaged each time that it is called."""
        if not self._should_synchronize:
            self._synchronized = False
            return super().step() if closure is None else super().step(closure)
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): gradients are "
                "averaged a second time. Call it inside `with optimizer.skip_synchronize():`",
                stacklevel=2,
            )
        if closure is None:
            self.synchronize()
            self._synchronized = False
            return super().step()

        def averaged() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return loss

        return super().step(averaged)

    # Hooks of steps run in the program's own step, on averaged gradients; PyTorch is not to run them around this one too.
    step.hooked = True  # type: ignore[attr-defined]

    def _start(self, parameter: Parameter) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient, name = parameter.grad, self._parameter_names[parameter]
        if gradient.is_sparse and not self._sparse_as_dense:
            self._waits[parameter] = _taking_sparse(
                parameter, gradient, sparse_allreduce_async(gradient, name, self._op, self.process_set)
            )
            return
        self._waits[parameter] = _Taking(parameter, gradient, self._compression, self._reduction(), name)

    def _reduction(self) -> Reduction:
        # Each time, since the process set may be one of another job by now.
        return Reduction(self._op, 1 / self._predivide, self._predivide, self.process_set)


class _Taking:
    """Of a dense gradient, or of a sparse one's elements. Does not keep the optimizer, which keeps it."""

    __slots__ = ("_compression", "_context", "_dense", "_gradient", "_operation", "_parameter")

    def __init__(
        self, parameter: Parameter, gradient: torch.Tensor, compression: Any, reduction: Reduction, name: str
    ) -> None:
        self._parameter = parameter
        self._gradient = gradient
        # Not the gradient itself, which the program may give other memory meanwhile.
        self._dense = gradient.to_dense() if gradient.is_sparse else gradient.detach()
        self._compression = compression
        travelling, self._context = compression.compress(self._dense)
        self._operation = reduction.begin_(travelling, name)

    def __call__(self) -> bool:
        averaged = self._compression.decompress(self._operation.wait(), self._context)
        parameter, gradient, dense = self._parameter, self._gradient, self._dense
        present = parameter.grad
        if averaged is not dense:
            dense.copy_(averaged)
        if present is None:
            return False
        if gradient.is_sparse:
            parameter.grad = dense.to_sparse(gradient.sparse_dim())
            return present is not gradient
        is_replaced = present.is_sparse or present.data_ptr() != dense.data_ptr()
        if is_replaced:
            parameter.grad = dense
        return is_replaced


def _taking_sparse(parameter: Parameter, gradient: torch.Tensor, average: Callable[[], torch.Tensor]) -> Take:
    def take() -> bool:
        averaged, present = average(), parameter.grad
        if present is not None:
            parameter.grad = averaged
        return present is not None and present is not gradient

    return take


def _warn_of(replaced: list[str], process_set: ProcessSet) -> None:
    session = process_set.group.session
    others = f" and {len(replaced) - 3} more" if len(replaced) > 3 else ""
    warnings.warn(
        f"{rank_name(session.rank, session.hosts)}: the gradients of {', '.join(replaced[:3])}{others} were replaced while they were "
        "averaged; the averages have their place now, and what was put there is lost. Between backward and step, change gradients "
        "after optimizer.synchronize(), and call step() inside `with optimizer.skip_synchronize():`",
        stacklevel=4,
    )


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of the same class, with the options and the state of ``optimizer``, whose steps use averaged gradients.

    ``loss.backward()`` starts averaging a gradient as soon as it is there; ``step()`` waits for all. In between come
    ``synchronize()`` and ``skip_synchronize()``, where gradients are clipped.

    Arguments:
        optimizer: any but LBFGS. It is not to be used any more.
        named_parameters: ``model.named_parameters()``, for messages and so that ranks' gradients are matched by name. None:
            by their places in the optimizer.
        compression: how gradients travel, one of ``Compression``.
        backward_passes_per_step: how many backward passes add up before gradients are averaged.
        op: Average, Sum, Min, Max, Product, or Adasum, with which each rank makes its own step, and the steps are combined.
        gradient_predivide_factor: with Average: gradients are divided by it before they are added, and what remains after.
        num_groups: of older scripts: ``groups``.
        groups: which gradients start together: lists of parameters, or into how many lists to cut them. None: each alone.
        sparse_as_dense: sparse gradients are made dense before they are averaged, and sparse again after.
        process_set: the ranks that average. On others it is as ``optimizer``.

    Raises:
        ValueError: arguments that do not fit, names that are not unique or lack a parameter; before ``init``.
        NotImplementedError: Adasum with a number of ranks that is no power of two.
    """
    operator = known_operator(op)
    if gradient_predivide_factor != 1.0 and operator is not ReduceOp.Average:
        raise ValueError(f"gradient_predivide_factor is for op=hvd.Average, got hvd.{operator.name}: leave it out")
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}")
    if num_groups:
        warnings.warn("num_groups is deprecated: say groups instead", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = names_of(optimizer.param_groups, named_parameters)
    _check_groups(groups)
    communicates = basics.size() > 1 and bool(process_set.included())
    if operator is ReduceOp.Adasum and communicates:
        check_adasum(process_set.group)
        adasum = wrap(optimizer, AdasumOptimizer)
        adasum.prepare(compression)
        adasum.begin(names, backward_passes_per_step, process_set, communicates)
        return adasum
    averaging = wrap(optimizer, AveragingOptimizer)
    averaging.prepare(compression, operator, gradient_predivide_factor, groups, sparse_as_dense)
    averaging.begin(names, backward_passes_per_step, process_set, communicates)
    return averaging


def _check_groups(groups: Any) -> None:
    if groups is None:
        return
    if isinstance(groups, list):
        parameters = [parameter for group in groups for parameter in group]
        if not all(isinstance(parameter, torch.Tensor) for parameter in parameters):
            raise ValueError("groups are lists of parameters, but something in them is no tensor")
        if len({id(parameter) for parameter in parameters}) < len(parameters):
            raise ValueError("a parameter is in groups more than once")
    elif not isinstance(groups, int) or groups <= 0:
        raise ValueError(f"groups must be a number above 0, or lists of parameters, got {groups!r}")


def _together(groups: Groups, param_groups: list[dict[str, Any]]) -> dict[Parameter, tuple[Parameter, ...]]:
    """Parameter → those that start with it."""
    if groups is None:
        return {}
    trained = [each for options in param_groups for each in options["params"] if each.requires_grad]
    cut: Sequence[Sequence[Parameter]] = split_list(trained, groups) if isinstance(groups, int) else groups
    present = set(trained)
    members = [tuple(each for each in group if each in present) for group in cut]
    return {parameter: group for group in members for parameter in group}
