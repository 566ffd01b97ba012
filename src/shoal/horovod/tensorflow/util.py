"""What scripts and tests import from ``horovod.tensorflow.util``."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from shoal.horovod.common.util import _cache as _cache


def _executing_eagerly() -> bool:
    """Whether operations run when they are called."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """The function as a graph."""
    return tf.function(f)


def vars_to_refs(vars: Any) -> Any:
    """References to variables, or to those in lists of lists, as keys of dictionaries: lists become tuples."""
    return tuple(vars_to_refs(each) for each in vars) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables of ``vars_to_refs``."""
    return [refs_to_vars(each) for each in refs] if isinstance(refs, tuple) else refs.deref()
