"""Which of Keras's backends a test can have here: marks of pytest's that say why one is left out."""

from importlib.metadata import version
from importlib.util import find_spec

import pytest

of_keras_3 = pytest.mark.skipif(version("keras").startswith("2."), reason="shoal.keras is for Keras 3")


def _mark(backend: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(backend) is None, reason=f"{backend}, the backend, is not installed here")


BACKENDS = {backend: _mark(backend) for backend in ("tensorflow", "torch", "jax")}


def on_each(*others: object) -> list[object]:
    """Parameters: each backend; with ``others``, each with each of these."""
    return [
        pytest.param((backend, other) if others else backend, marks=mark)
        for backend, mark in BACKENDS.items()
        for other in others or (None,)
    ]
