"""The gradients of an optimizer's steps, combined over the ranks: what optimizers of Keras and of version 1 share."""

from collections.abc import Sequence
from typing import Any

from shoal.horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from shoal.horovod.tensorflow.gradients import Combiner, HowCombined, LocalVariables


class StepGradients:
    """Those of one optimizer.

    Arguments:
        how: ``checked``.
        passes: so many are added up before they travel. Raises ValueError for less than 1.
        averages: whether the sum of several is divided by their number.
        scales: whether gradients of local variables are divided by the number of ranks.
        name: begins the names of the variables that add up several passes.
    """

    def __init__(self, how: HowCombined, passes: int, averages: bool, scales: bool, name: str) -> None:
        combiner = Combiner("DistributedOptimizer", how)
        self.how = how
        self.aggregation = (
            None
            if passes == 1
            else LocalGradientAggregationHelper(
                passes,
                lambda gradients, _: combiner(gradients),
                how.sparse_as_dense,
                averages,
                process_set=how.process_set,
                scale_local_gradients=scales,
                name=name,
            )
        )
        self._combiner = combiner
        self._local = LocalVariables(how.process_set, scales)

    def register_local_var(self, variable: Any) -> None:
        """From now on the gradient of the variable is this rank's own."""
        if self.aggregation is None:
            self._local.register(variable)
        else:
            self.aggregation.register_local_var(variable)

    def register_local_layer(self, layer: Any) -> None:
        """From now on the gradients of the layer's weights are this rank's own, also of those that it does not have yet."""
        if self.aggregation is None:
            self._local.register_layer(layer)
        else:
            self.aggregation.register_local_layer(layer)

    def combined(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks. With several passes a step those of the pass, but in the last one."""
        if self.aggregation is None:
            return self._local.combine(list(gradients), list(variables), self._combiner)
        return self.aggregation.compute_gradients(list(gradients), list(variables))
