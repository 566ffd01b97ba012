"""``DistributedOptimizer``: an optimizer of Keras's that applies the same gradients on all ranks."""

from typing import Any

import keras

from shoal.job.groups import Group
from shoal.keras.averaging import Averaging
from shoal.keras.distributed import distributed, is_distributed


def DistributedOptimizer(
    optimizer: Any, group: Group | None = None, op: str = "mean", sparse_as_dense: bool = False
) -> Any:
    """The optimizer itself, which from now on averages gradients over the ranks before it applies them.

    It keeps its class's name, options and variables; a saved model loads without Shoal, and ``shoal.keras.load_model``
    makes its optimizer a distributed one again. Gradients are matched by their variables' paths: every rank makes the same
    layers in the same order, or names them. Works in ``fit``, ``train_on_batch`` and with ``apply`` or ``stateless_apply`` in
    a loop of the program's own, eager and compiled; by XLA on TensorFlow where that can (docs/tensorflow.md).

    Arguments:
        optimizer: of ``keras.optimizers``, or a class of the program's own. It must be the outermost one: around a
            ``LossScaleOptimizer``, not in it.
        group: the ranks that train the model; None: all.
        op: "mean", or "sum" for programs that have divided their losses by the number of ranks.
        sparse_as_dense: whether ``tf.IndexedSlices``, the gradients of embeddings on TensorFlow, are made dense first.
            Else each rank gets the slices of all.

    Raises TypeError for what is no optimizer of Keras 3's, ValueError for an optimizer that is distributed already or has one
    inside, and NotImplementedError on a backend other than TensorFlow, PyTorch and JAX. What goes wrong in a step is the
    backend's error, with Shoal's text.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of Keras 3, such as keras.optimizers.SGD(0.1), got {type(optimizer).__name__}"
        )
    if not hasattr(optimizer, "stateless_apply"):
        raise TypeError(
            f"shoal.keras is for Keras 3, and this is Keras {keras.__version__}: take shoal.horovod.keras, which has a "
            "DistributedOptimizer for it"
        )
    if op not in ("mean", "sum"):
        raise ValueError(f"op must be mean or sum, got {op!r}")
    inner = (getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ()))
    if is_distributed(optimizer) or any(map(is_distributed, inner)):
        raise ValueError(
            f"this {type(optimizer).__name__} averages gradients already: wrap an optimizer once, and the outermost alone"
        )
    made = distributed(type(optimizer), Averaging(group, op, sparse_as_dense))
    object.__setattr__(optimizer, "__class__", made)
    return optimizer
