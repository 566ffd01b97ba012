"""``hvd.BroadcastGlobalVariablesHook``: the same variables on all ranks when a session of version 1 begins."""

from typing import Any

import tensorflow as tf

from shoal.horovod.tensorflow.functions import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """For ``tf.compat.v1.train.MonitoredTrainingSession(hooks=[...])``: the variables of the root, also those of a checkpoint.

    Arguments:
        root_rank: whose variables all get.
        device: where TensorFlow is to place the operations.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Adds the operation to the graph."""
        if self.bcast_op is None or self.bcast_op.graph != tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        session.run(self.bcast_op)
