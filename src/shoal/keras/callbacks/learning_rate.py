"""Learning rates that follow a schedule, and that warm up (Goyal et al., 2017, section 2.2)."""

from collections.abc import Callable
from typing import Any

import keras

from shoal.job.groups import Group, world
from shoal.keras.arrays import to_numpy
from shoal.keras.callbacks import momentum


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to ``initial_lr`` times ``multiplier`` in the epochs from ``start_epoch`` to before ``end_epoch``.

    Several callbacks may follow each other. Reports ``learning_rate`` among an epoch's metrics. Afterwards the rate is that of the
    last batch before ``end_epoch``.

    Arguments:
        initial_lr: what is multiplied.
        multiplier: a number, or a function of the epoch.
        start_epoch, end_epoch: counted from 0; None: to the end.
        staircase: whether it is set when an epoch begins, and ``multiplier`` is called with a whole number; else before each
            batch, or what ``steps_per_execution`` makes one call of, with the epoch and the part of it that is done.
        momentum_correction: whether the velocities of SGD and RMSprop change with the learning rate.
        steps_per_epoch: only where Keras does not know how many steps an epoch has, as with a generator.

    In ``on_train_begin`` raises ValueError for an optimizer that has a schedule of its own, for a MultiOptimizer, and where
    ``steps_per_epoch`` is needed.
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
        super().__init__()
        self._initial = float(initial_lr)
        self._multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda _: float(multiplier)
        self._start = start_epoch
        self._end = end_epoch
        self._staircase = staircase or not callable(multiplier)
        self._corrects = momentum_correction
        self._steps = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        rate = getattr(self.model.optimizer, "learning_rate", None)
        if not hasattr(rate, "assign"):
            raise ValueError(
                f"the learning rate of this {type(self.model.optimizer).__name__} cannot be set: make the optimizer with a number, "
                "not with a schedule or a function (and no MultiOptimizer), or leave this callback out"
            )
        if not self._staircase and self._steps_of_epoch() is None:
            raise ValueError("Keras does not know how many steps an epoch has: pass steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch
        if self._staircase and self._is_on():
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._staircase and self._is_on():
            self._set(self._epoch + batch / self._known_steps())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # The last batch had no rate of its own if Keras made several steps in one call, or if the epoch was cut short.
        if not self._staircase and self._is_on() and self._end is not None and epoch + 1 >= self._end:
            steps = self._known_steps()
            self._set(epoch + (steps - 1) / steps)
        if logs is not None:
            logs["learning_rate"] = self._rate()

    def _is_on(self) -> bool:
        return self._start <= self._epoch and (self._end is None or self._epoch < self._end)

    def _steps_of_epoch(self) -> int | None:
        return self._steps or (self.params or {}).get("steps")

    def _known_steps(self) -> int:
        steps = self._steps_of_epoch()
        assert steps is not None, "on_train_begin has seen to it"
        return steps

    def _set(self, epoch: float) -> None:
        # On JAX, variables have their values between epochs only, unless they are asked for.
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        before = self._rate()
        self.model.optimizer.learning_rate = self._initial * self._multiplier(epoch)
        if self._corrects:
            momentum.correct(self._velocities(), before, self._rate())

    def _velocities(self) -> list[Any]:
        return momentum.velocities(self.model.optimizer)

    def _rate(self) -> float:
        return float(to_numpy(self.model.optimizer.learning_rate))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate in even steps from ``initial_lr`` / size to ``initial_lr``, in the first epochs.

    Where n ranks train on n times as large batches, the learning rate that was right for one rank times n is too high at first.
    Stands before callbacks that lower it later.

    Arguments:
        initial_lr: the learning rate after the warm-up; usually that of one rank times the number of ranks.
        warmup_epochs: how many.
        momentum_correction, steps_per_epoch: as for ``LearningRateScheduleCallback``.
        verbose: above 0, the group's first rank says when it is over.
        group: the ranks that train the model; None: all.

    Raises as ``LearningRateScheduleCallback``.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        group: Group | None = None,
    ) -> None:
        members = world() if group is None else group

        def multiplier(epoch: float) -> float:
            # The last batch has all of it.
            done = min(1.0, (epoch + 1 / self._known_steps()) / warmup_epochs)
            return (1 + done * (members.size - 1)) / members.size

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._says = verbose > 0 and members.rank == 0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self._says and self._end is not None and epoch == self._end - 1:
            print(f"\nEpoch {epoch + 1}: the warm-up is over, the learning rate is {self._rate():g}")
