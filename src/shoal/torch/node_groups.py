"""Process groups of PyTorch's for nodes. Whoever calls collectives inside nodes has one of its own.

A group matches calls by their order, so two that call from different threads would be given each other's tensors.
PyTorch names a group by how many there are, so all ranks make the groups of all nodes: a number that only the ranks of
a node agree on differs where those are in different numbers of other groups.

Invariant: all ranks of ``torch.distributed`` make the same groups in the same order, and number them alike. One that
nobody uses any more is used again, once that is so on all ranks.
"""

import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from shoal.job import runtime
from shoal.job.groups import Group
from shoal.job.per_job import PerJob


@dataclass
class NodeGroup:
    """``group``: that of this rank's node. ``is_broken``: its ranks may be in different collectives for ever.

    ``between``: the ranks at this place of all nodes; ``here``: the ranks of this node, in Shoal.
    """

    group: Any
    nodes: list[list[int]]
    backend: str
    is_free: bool = False
    is_broken: bool = False
    # Shoal's own groups that come with it. They are for good, so they are kept with it.
    between: Group | None = None
    here: Group | None = None


_made: PerJob[list[NodeGroup]] = PerJob(lambda _: [])

# The program's own groups that somebody has to himself, by identity.
_lent: PerJob[dict[int, NodeGroup]] = PerJob(lambda _: {})

_lock = threading.RLock()  # owners are let go of anywhere


def free_numbers() -> list[int]:
    """The numbers of the groups that this rank could use again."""
    made = _made.of(runtime.current())
    with _lock:
        for its in made:
            if its.is_free and not _is_alive(its):
                its.group, its.is_free = None, False  # its number stays
        return [number for number, its in enumerate(made) if its.is_free]


def take(owner: object, nodes: Sequence[Sequence[int]], backend: str, free: Iterable[Sequence[int]]) -> NodeGroup:
    """The group of this rank's node, for ``owner`` as long as it lives. Called by all ranks of ``torch.distributed``.

    ``free``: what ``free_numbers()`` is on each of them.
    """
    session = runtime.current()
    wanted, made = [list(node) for node in nodes], _made.of(session)
    for number in sorted(set.intersection(*map(set, free))):
        its = made[number]
        if (its.nodes, its.backend) == (wanted, backend):
            with _lock:
                its.is_free = False
            break
    else:
        timeout = timedelta(seconds=session.settings.timeout)
        groups = [dist.new_group(node, backend=backend, timeout=timeout) for node in wanted]
        own = next(group for group, node in zip(groups, wanted, strict=True) if dist.get_rank() in node)
        its = NodeGroup(own, wanted, backend)
        with _lock:
            made.append(its)
    weakref.finalize(owner, _give_back, its).atexit = False
    return its


def is_lent(group: Any) -> bool:
    """Whether somebody has the program's group to himself, or has left it broken."""
    lent = _lent.of(runtime.current())
    with _lock:
        return id(group) in lent


def lend(owner: object, nodes: Sequence[Sequence[int]], group: Any) -> NodeGroup:
    """``owner`` has the program's group to himself as long as it lives."""
    lent = _lent.of(runtime.current())
    its = NodeGroup(group, [list(node) for node in nodes], str(dist.get_backend_config(group)))
    with _lock:
        lent[id(group)] = its
    weakref.finalize(owner, _end_loan, lent, its).atexit = False
    return its


def _is_alive(its: NodeGroup) -> bool:
    try:
        return bool(dist.get_process_group_ranks(its.group))
    except Exception:
        return False  # the program has destroyed all groups


def _give_back(its: NodeGroup) -> None:
    with _lock:
        its.is_free = not its.is_broken


def _end_loan(lent: dict[int, NodeGroup], its: NodeGroup) -> None:
    with _lock:
        if not its.is_broken:
            lent.pop(id(its.group), None)
