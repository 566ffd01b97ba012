"""A file with the model of the best epoch, written by one rank."""

import os
import warnings
from typing import Any

import keras

from shoal.assembly.terms import rank_name
from shoal.errors import ShoalError
from shoal.job.groups import Group, world
from shoal.keras.logs import average_metrics, exchange


class BestModelCheckpoint(keras.callbacks.Callback):
    """Saves the model after each epoch that is the best so far, by a metric's mean over the ranks.

    Rank ``root`` decides and writes, as ``keras.callbacks.ModelCheckpoint(save_best_only=True)``; the others wait until the file is
    there, so all may read it afterwards, and have the same ``best``. If it cannot be written, that is an error on all ranks.
    After an epoch without the metric, such as one without validation, it warns and saves nothing.

    Arguments:
        filepath: as for ModelCheckpoint; may have ``{epoch}`` and metrics in it, as their means.
        monitor: the metric; it need not be averaged before.
        verbose, save_weights_only, mode, initial_value_threshold: as for ModelCheckpoint.
        root: a rank of the job that is a member of the group.
        group: the ranks that train the model; None: all.

    Raises ValueError if ``root`` is no member, and what ModelCheckpoint raises. In ``on_epoch_end`` raises ShoalError on every rank
    if the root cannot write, and what ``average_metrics`` raises.
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        initial_value_threshold: float | None = None,
        root: int = 0,
        group: Group | None = None,
    ) -> None:
        super().__init__()
        self._group = world() if group is None else group
        if root not in self._group.ranks:
            raise ValueError(f"root {root} is not a member of {group or 'the job'}; root is a rank of the job")
        self._root = root
        # On every rank, so that wrong arguments are an error on all of them.
        self._writer = keras.callbacks.ModelCheckpoint(
            filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            initial_value_threshold=initial_value_threshold,
        )
        self.best: float | None = initial_value_threshold
        """The metric of the best epoch so far, the same on all ranks; None before there is one."""

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._writer.set_model(model)

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._writer.set_params(params)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._writer.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        averaged = average_metrics(logs or {}, self._group)
        if self._writer.monitor not in averaged:
            # On no rank, as all have the same ones.
            if self._group.session.rank == self._root:
                warnings.warn(
                    f"after epoch {epoch + 1} there is no metric {self._writer.monitor!r} to tell the best model by, only "
                    f"{', '.join(sorted(averaged)) or 'none'}, so nothing was saved: pass another monitor, or validation data",
                    stacklevel=2,
                )
            return
        outcome = self._write(epoch, averaged) if self._group.session.rank == self._root else None
        outcome = exchange(outcome, "best model", self._group)[self._group.ranks.index(self._root)]
        if outcome["error"] is not None:
            session = self._group.session
            here, there = (rank_name(rank, session.hosts) for rank in (session.rank, self._root))
            raise ShoalError(f"{here}: the best model could not be saved on {there}: {outcome['error']}")
        self.best = outcome["best"]

    def _write(self, epoch: int, logs: dict[str, Any]) -> dict[str, Any]:
        try:
            self._writer.on_epoch_end(epoch, logs)
        except Exception as error:
            return {"best": None, "error": f"{type(error).__name__}: {error}"}
        best = self._writer.best
        return {"best": None if best is None else float(best), "error": None}
