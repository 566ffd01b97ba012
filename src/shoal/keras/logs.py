"""Metrics: those of all ranks, in one operation."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.assembly.terms import rank_name
from shoal.errors import Mismatch
from shoal.job.groups import Group, world
from shoal.keras.arrays import to_numpy
from shoal.ops import collectives


def average_metrics(logs: Mapping[str, Any], group: Group | None = None) -> dict[str, Any]:
    """The mean of each metric over the ranks, with the same bits on all of them; what is no number stays as it is.

    Every rank counts the same: where one has seen fewer samples than others, it is not the mean over all samples.

    Arguments:
        logs: the same names on every rank, as of ``model.evaluate(..., return_dict=True)``.
        group: the ranks that take part; None: all.

    Raises:
        Mismatch: ranks have different names.
        PeerLost, Timeout, ShoalError: as ``shoal.allgather``.
    """
    members = world() if group is None else group
    own = {name: number for name, value in logs.items() if (number := _number(value)) is not None}
    everyones = exchange(own, "metrics", members)
    _compare(everyones, members)
    means = {name: sum(each[name] for each in everyones) / members.size for name in own}
    return {name: means.get(name, value) for name, value in logs.items()}


def exchange(own: Any, name: str, group: Group) -> list[Any]:
    """What each member has, by its place in the group: texts, numbers, and lists and dicts of them."""
    text = np.frombuffer((json.dumps(own) + "\n").encode(), np.uint8)
    gathered = collectives.allgather(text, f"keras/{name}", group)
    return [json.loads(line) for line in gathered.tobytes().decode().splitlines()]


def _number(value: Any) -> float | None:
    if isinstance(value, str | bytes) or value is None:
        return None
    try:
        array = to_numpy(value)
    except (TypeError, ValueError):
        return None
    return float(array) if array.size == 1 and array.dtype.kind in "fiub" else None


def _compare(everyones: Sequence[Mapping[str, Any]], group: Group) -> None:
    session = group.session
    names = [set(each) for each in everyones]
    for place, other in enumerate(names):
        if other == names[0]:
            continue
        first, second = (rank_name(group.ranks[at], session.hosts) for at in (0, place))
        differing = [
            f"{', '.join(sorted(names[one] - names[two]))} on {who} alone"
            for one, two, who in ((0, place, first), (place, 0, second))
            if names[one] - names[two]
        ]
        raise Mismatch(
            f"{rank_name(session.rank, session.hosts)}: the ranks do not have the same metrics: {' and '.join(differing)}. "
            "Compile the same metrics on all ranks, and give all of them validation data or none"
        )
