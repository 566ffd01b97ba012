"""Adasum of tensors: ``shoal.allreduce(op="adasum")``, which takes arrays, called from TensorFlow.

In a graph that is a call of Python's (``tf.numpy_function``), which one of TensorFlow's threads waits in. So that ranks do not
wait for each other in different calls, calls of a graph run one after the other, in the order in which the program makes
them; those of a group are on their way together.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import shoal
from shoal.errors import Mismatch, ShoalError
from shoal.horovod.common.averages import check_adasum
from shoal.job.groups import Group
from shoal.tensorflow import naming

# In a graph that does not order calls itself, its collection of this name has the last call.
_LAST = "shoal adasum"


def adasum(tensors: Sequence[Any], name: str | None, group: Group) -> list[Any]:
    """Adasum of each tensor over the group. The gradients of the results are combined in the same way.

    Raises NotImplementedError if the number of ranks is no power of two, TypeError for a dtype that is not floating.
    tf.errors.FailedPreconditionError if ranks disagree, in a graph and for all other errors tf.errors.UnknownError.
    """
    check_adasum(group)
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    for tensor in tensors:
        if not tensor.dtype.is_floating:
            raise TypeError(f"Adasum is for floating dtypes, got {tensor.dtype.name}: use op=hvd.Average")
    label = name or _name_of_call()

    @tf.custom_gradient
    def combined(*given: Any) -> Any:
        def gradient(*upstream: Any) -> Any:
            return adasum(upstream, f"{label}.gradient", group)

        return _combined(given, label, group), gradient

    results = combined(*tensors)
    return list(results) if isinstance(results, list | tuple) else [results]


def _name_of_call() -> str:
    # An eager call has ended before the next: all may have the same name.
    return "adasum" if tf.executing_eagerly() else naming.name_of_call("adasum", tf.compat.v1.get_default_graph())


def _combined(tensors: Sequence[Any], label: str, group: Group) -> list[Any]:
    def combine(*arrays: Any) -> list[Any]:
        names = [f"{label}.{index}" for index in range(len(arrays))]
        started = [
            shoal.allreduce_async(np.ascontiguousarray(array), "adasum", name, group)
            for array, name in zip(arrays, names, strict=True)
        ]
        return [handle.wait() for handle in started]

    if tf.executing_eagerly():
        try:
            return [tf.constant(result) for result in combine(*(tensor.numpy() for tensor in tensors))]
        except Mismatch as error:
            raise tf.errors.FailedPreconditionError(None, None, str(error)) from error
        except ShoalError as error:
            raise tf.errors.UnknownError(None, None, str(error)) from error
    with _after_the_last():
        results = tf.numpy_function(combine, tensors, [tensor.dtype for tensor in tensors], name="ShoalAdasum")
    _remember(results[0])
    for tensor, result in zip(tensors, results, strict=True):
        result.set_shape(tensor.shape)
    return list(results)


def _after_the_last() -> Any:
    return tf.control_dependencies(tf.compat.v1.get_default_graph().get_collection(_LAST))


def _remember(result: Any) -> None:
    graph = tf.compat.v1.get_default_graph()
    # Functions order their calls themselves. An operation in a loop of version 1 cannot be waited for from outside.
    if not graph.building_function and graph._get_control_flow_context() is None:
        graph.get_collection_ref(_LAST)[:] = [result.op]
