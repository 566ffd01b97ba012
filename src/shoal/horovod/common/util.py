"""What scripts and tests import from ``horovod.common.util``, as far as it means something here."""

import functools
import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from shoal.horovod.common.operators import ReduceOp

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

EXTENSIONS = ("tensorflow", "torch", "mxnet")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is a door for the framework, and the framework itself. ``verbose``: prints the answer."""
    has_door = importlib.util.find_spec(f"shoal.horovod.{ext_base_name}") is not None
    available = has_door and importlib.util.find_spec(ext_base_name) is not None
    if verbose:
        print(f"{ext_base_name}: {'available' if available else 'not available'}")
    return available


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework, PyTorch or TensorFlow, can use a GPU."""
    if ext_base_name not in ("torch", "tensorflow") or not extension_available(ext_base_name, verbose):
        return False
    if ext_base_name == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    import torch

    return torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    """False: there is no MPI here."""
    return False


def gloo_built(verbose: bool = False) -> bool:
    """True: CPU tensors go over TCP without MPI, which is what scripts ask."""
    return True


def nccl_built(verbose: bool = False) -> bool:
    """False: NCCL is not used here."""
    return False


ddl_built = ccl_built = nccl_built


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Inside, these environment variables have these values. None leaves a variable as it is."""
    changes = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def chosen_operator(op: int | None, average: bool | None) -> ReduceOp:
    """The operator that ``op`` or the older argument ``average`` asks for. Raises ValueError for both, or an unknown one."""
    if op is not None and average is not None:
        raise ValueError("op and average are both given: leave out average, which op has replaced")
    if average is not None:
        warnings.warn(
            "the argument average is deprecated: say op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3
        )
        return ReduceOp.Average if average else ReduceOp.Sum
    return ReduceOp.Average if op is None else known_operator(op)


def known_operator(op: int) -> ReduceOp:
    """``op`` as one of ``ReduceOp``. Raises ValueError for any other."""
    try:
        return ReduceOp(op)
    except ValueError:
        raise ValueError(f"op={op!r} is none of {', '.join(f'hvd.{each.name}' for each in ReduceOp)}") from None


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two, which Adasum wants."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version ``ver`` is ``target``, of three numbers, or a later one. Raises ValueError for another ``target``."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"target is a version of three numbers, such as 2.6.0, got {target!r}")
    numbers = [int(number) for number in re.findall(r"\d+", ver)[:3]]
    return numbers >= [int(number) for number in target.split(".")]


def split_list(l: Sequence[_T], n: int) -> list[Sequence[_T]]:  # noqa: E741
    """``l`` cut into ``n`` parts of about the same length."""
    each, more = divmod(len(l), n)
    ends = [(part + 1) * each + min(part + 1, more) for part in range(n)]
    return [l[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def is_iterable(x: object) -> bool:
    """Whether ``iter(x)`` can be."""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def _cache(f: _Function) -> Any:
    return functools.cache(f)
