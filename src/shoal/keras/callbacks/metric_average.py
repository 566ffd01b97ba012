"""Metrics of an epoch that are those of all ranks."""

from typing import Any

import keras

from shoal.job.groups import Group
from shoal.keras.distributed import check_averages
from shoal.keras.logs import average_metrics


class MetricAverageCallback(keras.callbacks.Callback):
    """At the end of an epoch, puts the mean over the ranks in the place of each metric.

    For the callbacks after it, the progress bar and ``fit``'s history: so it stands before EarlyStopping, ReduceLROnPlateau and
    ModelCheckpoint, which then decide the same on all ranks. One that stands before it decides by its own rank's metrics, and a
    rank that stops alone leaves the others waiting.

    ``group``: the ranks that train the model; None: all. In ``on_epoch_end`` raises what ``average_metrics`` raises, Mismatch
    where only some ranks have validation data, and RuntimeError if the model was compiled before its optimizer was a distributed one.
    """

    def __init__(self, group: Group | None = None) -> None:
        super().__init__()
        self._group = group

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        check_averages(self.model)
        averaged = average_metrics(logs or {}, self._group)
        if logs is not None:
            logs.update(averaged)
