"""What shoal.keras says where Keras is too old for it."""

from importlib.metadata import version

import keras
import pytest

import shoal.keras

pytestmark = pytest.mark.skipif(not version("keras").startswith("2."), reason="this is Keras 3")


def test_an_optimizer_of_keras_2_is_refused_with_what_to_take() -> None:
    """It would take the wrapper, and average nothing."""
    with pytest.raises(TypeError, match=r"for Keras 3, and this is Keras 2.*take shoal\.horovod\.keras"):
        shoal.keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
