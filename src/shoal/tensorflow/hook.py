"""For sessions of TensorFlow 1 (``tf.compat.v1.train.MonitoredTrainingSession``)."""

from typing import Any

import tensorflow as tf

from shoal.job.groups import Group
from shoal.tensorflow.variables import broadcast_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all global variables the values of rank ``root`` once a session has begun: also where it has restored a checkpoint.

    Arguments:
        root: a rank of the job that is a member of the group.
        group: the ranks that take part; None: all.
    """

    def __init__(self, root: int = 0, group: Group | None = None) -> None:
        super().__init__()
        self._root = root
        self._group = group
        self._operation: Any = None

    def begin(self) -> None:
        """The graph is complete, and is about to be finalized."""
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            self._operation = broadcast_variables(tf.compat.v1.global_variables(), self._root, self._group)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Variables have been initialised or restored."""
        session.run(self._operation)
