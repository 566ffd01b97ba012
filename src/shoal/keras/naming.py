"""Names of variables, by which ranks match what they send, and whether all ranks have the same ones.

Ranks that made other models before this one have other paths for its variables; those would wait for each other.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from shoal.assembly.terms import rank_name
from shoal.gradients.agreement import agree
from shoal.gradients.named_operations import NamedOperations
from shoal.job.groups import Group, world


def names_of(variables: Iterable[Any]) -> list[str]:
    """Their paths; what comes again has a number behind it."""
    seen: Counter[str] = Counter()
    names = []
    for variable in variables:
        path = _path(variable)
        seen[path] += 1
        names.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return names


def members_of(group: Group | None) -> Group:
    """Raises ValueError if this rank is not one."""
    members = world() if group is None else group
    if members.rank is None:
        raise ValueError(f"rank {members.session.rank} is not a member of {members}: train on its members only")
    return members


def compare(variables: Iterable[Any], names: Sequence[str], subject: str, group: Group) -> None:
    """Raises Mismatch on every rank, which names two of them, if they do not have the same variables in the same order."""
    lines = [f"{name} {tuple(each.shape)} {_dtype(each)}" for each, name in zip(variables, names, strict=True)]
    agree(_Operations(group), subject, lines, f"{subject} (build the same models in the same order, or name layers)")


def check_shape(gradient: Any, variable: Any, name: str) -> None:
    """Raises ValueError if it is not the variable's, as far as it is known: what ranks have agreed on are their variables."""
    if hasattr(gradient, "dense_shape") or getattr(gradient.shape, "rank", 0) is None:
        return
    shape, expected = tuple(gradient.shape), tuple(variable.shape)
    if len(shape) != len(expected) or any(one not in (None, two) for one, two in zip(shape, expected, strict=True)):
        session = world().session
        raise ValueError(
            f"{rank_name(session.rank, session.hosts)}: the gradient of {name!r} has shape {shape}, and its variable {expected}"
        )


class _Operations(NamedOperations):
    """Without a wrapped model, of which ranks could have made different numbers."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._prefix = "keras"


def _path(variable: Any) -> str:
    """Of a variable of Keras, or of TensorFlow itself."""
    path: str = getattr(variable, "path", None) or variable.name
    return path


def _dtype(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))
