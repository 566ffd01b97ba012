"""``hvd.SyncBatchNormalization``: batch normalisation over the batches of all ranks."""

from typing import Any

from shoal.tensorflow import sync_batch_norm


class SyncBatchNormalization(sync_batch_norm.SyncBatchNormalization):
    """``tf.keras.layers.BatchNormalization`` with the statistics of all ranks' batches while it trains.

    Arguments are those of the layer, by name. ``fused``: of older versions; False, else a ValueError.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused is not False:
            raise ValueError(
                f"SyncBatchNormalization has no fused form, which would see one rank's batch: leave out fused={fused}"
            )
        super().__init__(**kwargs)
