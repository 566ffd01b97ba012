"""``DistributedOptimizer(op=hvd.Adasum)``: combines what the program's optimizer has changed, instead of gradients.

Every ``backward_passes_per_step`` steps each rank takes the difference that its own steps have made to a variable; Adasum of
these is added to what the variable was before. Then all ranks have the same variables again.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from shoal.horovod.common.averages import check_adasum
from shoal.horovod.common.operators import ReduceOp
from shoal.horovod.common.process_sets import global_process_set
from shoal.horovod.tensorflow.allreduce import grouped_allreduce
from shoal.horovod.tensorflow.calls import after
from shoal.horovod.tensorflow.version_1 import Wrapper


class AdasumOptimizer(Wrapper):
    """Wraps an optimizer of version 1.

    Raises NotImplementedError if the number of ranks is no power of two, ValueError for less than one pass a step.
    """

    def __init__(
        self, optimizer: Any, name: str | None, use_locking: bool, compression: Any, backward_passes_per_step: int
    ) -> None:
        check_adasum(global_process_set.group)
        if backward_passes_per_step <= 0:
            raise ValueError(f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}")
        super().__init__(optimizer, name or f"DistributedDelta{type(optimizer).__name__}", use_locking)
        self._compression = compression
        self._passes = backward_passes_per_step
        self._steps: Any = None
        self._starts: dict[int, Any] = {}

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """This rank's own, as the wrapped optimizer computes them."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Any:
        """That of the wrapped optimizer, then in the last of the passes the changes of all ranks. In a graph an operation."""
        pairs = list(grads_and_vars)
        variables = [variable for gradient, variable in pairs if gradient is not None]
        self._make_starts(variables)
        # What variables are before the first step, others may give them as late as that.
        noted = tf.cond(tf.equal(self._steps, 0), lambda: self._note(variables), lambda: tf.constant(False))
        with after([noted]):
            applied = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with after([applied]):
            steps = self._steps.assign_add(1)
        with after([steps]):
            is_last = tf.equal(self._steps.read_value() % self._passes, 0)
            return tf.cond(is_last, lambda: self._combine(variables), lambda: tf.constant(False))

    def _make_starts(self, variables: list[Any]) -> None:
        with tf.init_scope():
            if self._steps is None:
                self._steps = tf.compat.v1.Variable(
                    0, trainable=False, use_resource=True, dtype=tf.int64, name=f"{self.get_name()}_steps"
                )
            for index, variable in enumerate(variables):
                if id(variable) not in self._starts:
                    self._starts[id(variable)] = tf.compat.v1.Variable(
                        tf.zeros(variable.shape, variable.dtype.base_dtype),
                        trainable=False,
                        use_resource=True,
                        name=f"{self.get_name()}_start_{index}",
                    )

    def _note(self, variables: list[Any]) -> Any:
        with after([self._starts[id(variable)].assign(variable) for variable in variables]):
            return tf.constant(True)

    def _combine(self, variables: list[Any]) -> Any:
        starts = [self._starts[id(variable)] for variable in variables]
        changes = [variable - start for variable, start in zip(variables, starts, strict=True)]
        combined = grouped_allreduce(
            changes, compression=self._compression, op=ReduceOp.Adasum, name=f"{self.get_name()}.changes"
        )
        assigned = []
        for variable, start, change in zip(variables, starts, combined, strict=True):
            value = start + change
            # Of both, after the old ones were read.
            with after(combined):
                assigned += [start.assign(value), variable.assign(value)]
        with after(assigned):
            return tf.constant(True)
