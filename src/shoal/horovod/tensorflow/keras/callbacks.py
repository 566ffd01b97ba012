"""Callbacks for ``model.fit``, with Horovod's names and arguments, on those of ``shoal.keras``. Every rank is given the same ones.

``device`` is where TensorFlow is to place what a callback does; what travels goes through memory of the host in any case.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.horovod.common.process_sets import global_process_set
from shoal.horovod.tensorflow.functions import broadcast_global_variables, broadcast_variables
from shoal.horovod.tensorflow.keras.keras_2 import build, variables_of, velocities
from shoal.horovod.tensorflow.keras.values import session
from shoal.keras import callbacks as shoals
from shoal.keras.distributed import check_averages, check_outermost
from shoal.ops import collectives


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):
    """Gives all ranks the weights of the model and the state of the optimizer that rank ``root_rank`` has.

    When training begins, if all ranks have made the weights by then; else after the first batch, as in a graph of
    TensorFlow 1. Not the state of random generators, so each rank's Dropout stays its own.

    Arguments:
        root_rank: a rank of the job.
        device: see above.
        local_variables: a variable or several that stay each rank's own. Raises ValueError for what is no variable.

    In ``on_train_begin`` raises ValueError for a model whose distributed optimizer is inside another one, such as a
    LossScaleOptimizer. In training raises what ``hvd.broadcast_variables`` raises; after the first epoch RuntimeError, if the model was compiled before
    its optimizer was a distributed one.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local: dict[int, Any] = {}
        given: Iterable[Any] = [] if local_variables is None else local_variables
        for variable in [given] if _is_variable(given) else given:
            if not _is_variable(variable):
                raise ValueError(f"local_variables are variables, and {variable!r} is a {type(variable).__name__}")
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """``var`` stays each rank's own."""
        self._local[id(var)] = var

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        check_outermost(self.model)
        if self.broadcast_done or not tf.executing_eagerly():
            return
        is_made = all(layer.built for layer in (self.model, *self.model._flatten_layers()))
        # A rank that has loaded its model must not broadcast before the others can.
        if collectives.allreduce(np.array([is_made], np.int32), "min", "keras/broadcast", global_process_set.group)[0]:
            self._broadcast()

    def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.broadcast_done:
            self._broadcast()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        check_averages(self.model)

    def _broadcast(self) -> None:
        with tf.device(self.device):
            if tf.executing_eagerly():
                optimizer = self.model.optimizer
                build(optimizer, self.model.trainable_variables)
                variables = [*self.model.weights, *variables_of(optimizer)]
                shared = [variable for variable in variables if id(variable) not in self._local]
                broadcast_variables(shared, self.root_rank)
            else:
                session().run(broadcast_global_variables(self.root_rank))
        self.broadcast_done = True


class MetricAverageCallback(shoals.MetricAverageCallback, tf.keras.callbacks.Callback):
    """At the end of an epoch, puts the mean over the ranks in the place of each metric, for the callbacks after it.

    Raises Mismatch on every rank if they do not have the same metrics, and RuntimeError if the model was compiled before its
    optimizer was a distributed one.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device


class _Rates(shoals.LearningRateScheduleCallback):
    """What Horovod's schedules have beside Shoal's: the metric ``lr``, and optimizers of Keras 2."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["lr"] = logs["learning_rate"]

    def _velocities(self) -> list[Any]:
        return velocities(self.model.optimizer)


class LearningRateScheduleCallback(_Rates, tf.keras.callbacks.Callback):
    """Sets the learning rate to ``initial_lr`` times ``multiplier`` in the epochs from ``start_epoch`` to before ``end_epoch``.

    Arguments:
        initial_lr: what is multiplied.
        multiplier: a function of the epoch; or a number, which is raised to the power of the epochs since ``start_epoch``.
        start_epoch, end_epoch: counted from 0; None: to the end.
        staircase: whether it is set when an epoch begins; else before each batch, with the part of the epoch that is done.
        momentum_correction: whether the velocities of SGD and RMSprop change with the learning rate.
        steps_per_epoch: where Keras does not know how many steps an epoch has.

    Raises as ``shoal.keras.callbacks.LearningRateScheduleCallback``.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        def power(epoch: float) -> float:
            return float(multiplier ** (epoch - start_epoch))  # type: ignore[operator]

        super().__init__(
            initial_lr,
            multiplier if callable(multiplier) else power,
            start_epoch,
            end_epoch,
            staircase,
            momentum_correction,
            steps_per_epoch,
        )


class LearningRateWarmupCallback(_Rates, shoals.LearningRateWarmupCallback, tf.keras.callbacks.Callback):
    """Raises the learning rate in even steps from ``initial_lr`` / size to ``initial_lr``, in the first epochs.

    Arguments are those of ``shoal.keras.callbacks.LearningRateWarmupCallback``, whose last one, the group, Horovod lacks.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose)


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):
    """``tf.keras.callbacks.ModelCheckpoint(save_best_only=True)`` whose ``filepath`` the program sets before ``fit``.

    It is given to one rank alone, behind a ``MetricAverageCallback`` that all have. Arguments are those of ModelCheckpoint.
    ``shoal.keras.callbacks.BestModelCheckpoint`` is for all ranks, and averages by itself.

    In ``on_train_begin`` raises ValueError where ``filepath`` is not set.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        # A name that Keras accepts, of a file that is never written.
        super().__init__(
            "unset.weights.h5" if save_weights_only else "unset.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: str | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.filepath is None:
            raise ValueError("this BestModelCheckpoint has no file yet: set its attribute filepath before fit")
        super().on_train_begin(logs)


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable | getattr(tf.keras, "Variable", tf.Variable))
