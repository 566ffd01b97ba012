"""The door for frameworks that call operations from C++ (native/doors): open to the job at hand, and its groups known there.

A framework's library of operations is loaded by the framework, and connected to the core here.
"""

import ctypes
from importlib import util
from typing import NamedTuple

from shoal import _native
from shoal.assembly.terms import rank_name
from shoal.errors import ShoalError
from shoal.job import runtime
from shoal.job.groups import Group
from shoal.job.per_job import PerJob
from shoal.job.session import Session

_numbers: PerJob[dict[str, int]] = PerJob(lambda _: {"": 0})
# Beside the identities of groups, which have their ranks.
_OF_JOB = "the job"


def library(module: str) -> str:
    """The path of a framework's library of operations, which lies in the package as this module.

    Raises ImportError if this Shoal was built without it.
    """
    spec = util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"this Shoal was built without {module}: install it again, from a wheel")
    return spec.origin


def connect(path: str, prefix: str) -> ctypes.CDLL:
    """Hands the core's functions to the library, which the framework has loaded. Opens the door, now and for each job.

    ``prefix``: of the names of the library's functions. Raises ImportError if the operations cannot be used.
    """
    loaded = ctypes.CDLL(path)
    problem = getattr(loaded, f"{prefix}_problem")
    problem.restype = ctypes.c_char_p
    text = problem().decode()
    if text:
        raise ImportError(text)
    if not getattr(loaded, f"{prefix}_connect")(ctypes.c_void_p(_native.door_table())):
        raise ImportError(f"{path} is of another version of Shoal than the rest: install Shoal again")
    _open_for_jobs()
    return loaded


def number_of(group: Group) -> int:
    """The door's number for the group, by which calls name it. 0: all ranks of the job at hand.

    Raises ShoalError if the group is of an earlier job.
    """
    return _number_of(group, group.identity)


def number_in_job(group: Group) -> int:
    """As ``number_of``, but of all ranks, too, a number that no later job knows: for what is right in this job alone."""
    return _number_of(group, group.identity or _OF_JOB)


def _number_of(group: Group, key: str) -> int:
    if group.session is not runtime.current():
        raise ShoalError(f"{group} is of an earlier job: make it again")
    numbers = _numbers.of(group.session)
    number = numbers.get(key)
    if number is None:
        assert group.rank is not None, "only members call operations"
        number = numbers[key] = _native.add_door_group(group.number, group.size, group.rank, group.timeout)
    return number


class Place(NamedTuple):
    """Who this rank is in a group: ``own`` is its index."""

    members: int
    own: int


def place(number: int) -> Place:
    """In the group of this number. Raises ShoalError if it is not of the present job."""
    try:
        return Place(*_native.door_place(number))
    except RuntimeError as error:
        raise ShoalError(str(error)) from None


_is_open = False


def _open_for_jobs() -> None:
    global _is_open
    if _is_open:
        return
    _is_open = True
    runtime.call_around(_open, lambda: None, lambda _: None)
    if runtime.is_initialized():
        _open(runtime.current())


def _open(session: Session) -> None:
    here = rank_name(session.rank, session.hosts)
    session.engine.open_door(here, session.settings.timeout, session.size, session.rank)
