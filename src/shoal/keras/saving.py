"""Models from files, whose optimizers are distributed ones again."""

import os
from collections.abc import Mapping
from typing import Any

import keras

from shoal.job.groups import Group
from shoal.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: str | os.PathLike[str],
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
    group: Group | None = None,
    op: str = "mean",
    sparse_as_dense: bool = False,
) -> Any:
    """``keras.saving.load_model``, with the model's optimizer wrapped by ``DistributedOptimizer``.

    Whoever calls it reads the file: every rank, or rank 0 alone, if the others make the model and the callback that
    broadcasts gives them its variables.

    Arguments:
        filepath, custom_objects, safe_mode: as for ``keras.saving.load_model``.
        group, op, sparse_as_dense: as for ``DistributedOptimizer``.

    Raises ValueError for a model that was saved without an optimizer, and what ``keras.saving.load_model`` raises.
    """
    model = keras.saving.load_model(filepath, custom_objects=custom_objects, compile=True, safe_mode=safe_mode)
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            f"the model in {os.fspath(filepath)} has no optimizer: load it with keras.saving.load_model, and compile it with a "
            "DistributedOptimizer"
        )
    DistributedOptimizer(model.optimizer, group, op, sparse_as_dense)
    return model
