"""All-reduce of tensors and of slices, alone and in groups, eager and in graphs, with gradients.

Arguments that both have:

    average: instead of ``op``, of older scripts: True is Average, False is Sum.
    device_dense, device_sparse: where TensorFlow is to place the operation. They go through memory of the host in any case.
    compression: how tensors travel, one of ``Compression``. Slices travel as they are.
    op: Average (the default), Sum, Min, Max, Product, or Adasum (floating dtypes, 2, 4, 8 ... ranks).
    prescale_factor, postscale_factor: of the tensor before, of the result after. Integers are scaled in float64 and cut
        toward zero.
    name: matches the ranks' calls (calls.py). None: as shoal.tensorflow does it.
    process_set: the ranks that take part.
    ignore_name_scope: taken, and means nothing: name scopes are never part of a name here.

Both raise ValueError for wrong arguments and before ``init``; NotImplementedError for what Horovod has not for slices; and
the errors of shoal.tensorflow's operations, all of them tf.errors.OpError: FailedPreconditionError if ranks disagree,
InvalidArgumentError if this rank is not in the process set, UnknownError for a lost rank and the rest.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.horovod.common.averages import operator_for
from shoal.horovod.common.compression import compressed
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.common.util import chosen_operator
from shoal.horovod.tensorflow.adasum import adasum
from shoal.horovod.tensorflow.calls import group_of, name_of, names_in_group
from shoal.horovod.tensorflow.compression import Compression
from shoal.horovod.tensorflow.scaling import scaled, scaled_after
from shoal.tensorflow import collectives


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """The ranks' tensors combined elementwise: of the shape and dtype of ``tensor``. Of slices: those of all ranks."""
    reduction = Reduction(chosen_operator(op, average), prescale_factor, postscale_factor, process_set)
    if isinstance(tensor, tf.IndexedSlices):
        with tf.device(device_sparse):
            return reduction.of_slices(tensor, name)
    with tf.device(device_dense):
        return reduction.of_tensors([tensor], [name], compression)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Any:
    """``allreduce`` of each of the tensors, in a list; in a graph all are on their way at once. ``name``: of the group."""
    if not tensors:
        return tensors
    reduction = Reduction(chosen_operator(op, average), prescale_factor, postscale_factor, process_set)
    names = names_in_group(name, len(tensors))
    sparse = [place for place, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [place for place in range(len(tensors)) if place not in set(sparse)]
    reduced: dict[int, Any] = {}
    with tf.device(device_sparse):
        reduced |= {place: reduction.of_slices(tensors[place], names[place]) for place in sparse}
    with tf.device(device_dense):
        given = [tensors[place] for place in dense]
        results = reduction.of_tensors(given, [names[place] for place in dense], compression)
        reduced |= dict(zip(dense, results, strict=True))
    return [reduced[place] for place in range(len(tensors))]


class Reduction:
    """How tensors are combined, for one or many of them.

    Raises ValueError and tf.errors.InvalidArgumentError for the process set, as ``group_of``.
    """

    def __init__(self, op: ReduceOp, prescale_factor: float, postscale_factor: float, process_set: ProcessSet) -> None:
        self._group = group_of(process_set)
        self._op = op
        self._prescale = prescale_factor
        self._postscale = postscale_factor

    def of_slices(self, slices: Any, name: str | None) -> Any:
        """Raises NotImplementedError, as Horovod does, for operators but Sum and Average, and for factors."""
        if self._op not in (ReduceOp.Sum, ReduceOp.Average):
            raise NotImplementedError(
                f"tf.IndexedSlices are combined by Sum or Average, not by {self._op.name}: pass tf.convert_to_tensor(x), to a "
                "tape or optimizer sparse_as_dense=True"
            )
        if self._prescale != 1.0 or self._postscale != 1.0:
            raise NotImplementedError(
                "tf.IndexedSlices are not scaled: pass tf.convert_to_tensor(x), or scale x.values"
            )
        return collectives.allreduce(slices, operator_for(self._op, True), name_of("allreduce", name), self._group)

    def of_tensors(self, tensors: Sequence[Any], names: Sequence[str | None], compression: Any) -> list[Any]:
        """Each combined under its name."""

        def reduced(travelling: list[Any]) -> list[Any]:
            return self._reduced(travelling, [name_of("allreduce", name) for name in names])

        return compressed(compression, [tf.convert_to_tensor(tensor) for tensor in tensors], reduced)

    def _reduced(self, tensors: list[Any], names: list[str | None]) -> list[Any]:
        given = [scaled(tensor, self._prescale) for tensor in tensors]
        if self._op is ReduceOp.Adasum:
            results = adasum(given, names[0], self._group) if given else []
        else:
            results = [
                collectives.allreduce(tensor, operator_for(self._op, tensor.dtype.is_floating), name, self._group)
                for tensor, name in zip(given, names, strict=True)
            ]
        return [scaled_after(result, self._op, self._group, self._postscale) for result in results]
