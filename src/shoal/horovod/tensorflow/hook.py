"""``hvd.BroadcastGlobalVariablesHook``: the same variables on all ranks when a session of TensorFlow 1 begins."""

import tensorflow as tf

from shoal.tensorflow import hook


class BroadcastGlobalVariablesHook(hook.BroadcastGlobalVariablesHook):
    """For ``tf.compat.v1.train.MonitoredTrainingSession(hooks=[...])``: the variables of the root, also those of a checkpoint.

    Arguments:
        root_rank: whose variables all get.
        device: where TensorFlow is to place the operations.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__(root_rank)
        self.root_rank = root_rank
        self.device = device

    def begin(self) -> None:
        """Adds the operation to the graph."""
        with tf.device(self.device):
            super().begin()
