"""The native operations, loaded into TensorFlow: ``operations`` has the functions that TensorFlow generates for them.

Loaded once in a process, with the first import of ``shoal.tensorflow``.
"""

import ctypes
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps

from shoal.ops import doors

# The others have a resource, which orders the calls of one name and nothing else (naming.py).
WITHOUT_ORDER = ("ShoalGradientReady", "ShoalGradientsFinish", "ShoalPlace")


def _load() -> tuple[Any, ctypes.CDLL]:
    path = doors.library("shoal.tensorflow._tensorflow")
    loaded = tf.load_op_library(path)
    functions = doors.connect(path, "shoal_tensorflow")
    # Now, since a saved function may have been compiled by XLA. Where that cannot be, xla.py says so when one is traced.
    functions.shoal_tensorflow_enable_xla.restype = ctypes.c_char_p
    functions.shoal_tensorflow_enable_xla()
    return loaded, functions


def _let_them_overlap() -> None:
    """In a function TensorFlow runs stateful operations without a resource one after the other, each when the one before is done,
    but for these.

    Stateless ones would be folded, merged and pruned. Without this they would be right, but only one would be in flight.
    """
    kept = "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"
    setattr(auto_control_deps, kept, frozenset(getattr(auto_control_deps, kept)) | set(WITHOUT_ORDER))


operations, native = _load()
_let_them_overlap()
