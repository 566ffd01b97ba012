"""``hvd.DistributedGradientTape``: a tape whose gradients are those of all ranks."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import ProcessSet, global_process_set
from shoal.horovod.tensorflow.compression import Compression
from shoal.horovod.tensorflow.gradients import Combiner, HowCombined, LocalVariables, checked, layers_of


class _Distributed:
    """What a distributed tape has beside what its class has."""

    _combiner: Combiner
    _local: LocalVariables

    def register_local_source(self, source: Any) -> None:
        """From now on the gradient of ``source`` is this rank's own: divided by the number of ranks, or as it is."""
        self._local.register(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """As ``tf.GradientTape.gradient``, of all ranks: these pass the same sources but for local ones, in the same order.

        ``use_generic_names`` is taken, and means nothing: names never depend on those of tensors. Raises as
        ``hvd.allreduce``.
        """
        own = super().gradient(target, sources, output_gradients, unconnected_gradients)  # type: ignore[misc]
        flat_sources = tf.nest.flatten(sources)
        combined = self._local.combine(tf.nest.flatten(own), flat_sources, self._combiner)
        return tf.nest.pack_sequence_as(sources, combined)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Pairs of source and gradient: of local sources, and of the others."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients), strict=True))
        return (
            [pair for pair in pairs if self._local.has(pair[0])],
            [pair for pair in pairs if not self._local.has(pair[0])],
        )


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape of the class of ``gradtape``, with what that has recorded, whose ``gradient`` is that of all ranks.

    Arguments:
        gradtape: a tf.GradientTape. It goes on recording.
        device_dense, device_sparse: taken, and mean nothing: gradients go through memory of the host.
        compression: how they travel, one of ``Compression``.
        sparse_as_dense: makes tensors of IndexedSlices before they travel.
        op: how they are combined.
        gradient_predivide_factor: of an average: gradients are divided by it before they are added up, the sum by the rest.
        num_groups, groups: taken and checked; all gradients travel together.
        process_set: the ranks that take part. On others gradients are their own.
        scale_local_gradients: whether gradients of local sources are divided by the number of ranks.

    Raises ValueError for arguments that contradict each other.
    """
    how = HowCombined(compression, sparse_as_dense, op, gradient_predivide_factor, process_set)
    how = checked(how, num_groups, groups)
    own_class = type(gradtape)
    tape: Any = object.__new__(type(own_class.__name__, (_Distributed, own_class), {}))
    tape.__dict__.update(gradtape.__dict__)
    # It is the other that is on TensorFlow's stack of tapes, and leaves it.
    tape._recording = False
    tape._combiner = Combiner("DistributedGradientTape", how)
    tape._local = LocalVariables(process_set, scale_local_gradients)
    return tape


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """``DistributedGradientTape`` to which the weights of some layers are local: ``local_layers``, a layer or several.

    The layers may get their weights later. Raises ValueError for what is no layer of Keras'.
    """
    layers = layers_of(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in layers:
        tape._local.register_layer(layer)
    return tape
