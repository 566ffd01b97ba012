"""Callbacks for ``model.fit`` on several ranks. Every rank is given the same ones, in the same order.

What ranks exchange in them is one operation each; an error of it ends ``fit`` on every rank.
"""

from shoal.keras.callbacks.best_model import BestModelCheckpoint
from shoal.keras.callbacks.broadcast import BroadcastVariablesCallback
from shoal.keras.callbacks.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from shoal.keras.callbacks.metric_average import MetricAverageCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
