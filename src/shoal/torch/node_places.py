"""Which ranks make a node: as process groups say it, or as they find it themselves. The same answer on every rank."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from shoal.errors import ConfigurationError
from shoal.job import runtime
from shoal.torch import node_groups
from shoal.torch.node_groups import NodeGroup
from shoal.torch.node_passes import NodePasses
from shoal.torch.nodes import Nodes
from shoal.torch.own_thread import OwnThread
from shoal.torch.tensor_operations import TensorOperations
from shoal.tuning import topology

_log = logging.getLogger("shoal")

OFF = "off"

# An operation of each wrapper's.
PLACES = "nodes"


def check(intra: Any) -> None:
    """Raises TypeError for what is no value of a wrapper's argument ``intra``, ValueError for a group of other ranks."""
    if intra is None or intra == OFF:
        return
    if dist.is_available() and intra == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not a member of intra: give each rank the group of its own node")
    if not dist.is_available() or not isinstance(intra, dist.ProcessGroup):
        raise TypeError(
            'intra must be the torch.distributed process group of the ranks of this node, None or "off", got '
            f"{type(intra).__module__}.{type(intra).__name__}"
        )


class Told(NamedTuple):
    """What a rank says. ``intra``: the ranks of the group that it was given, or "off", or None.

    ``gpu``: the one that all of its parameters are on, where NCCL can be used there; else None. ``key``: at random.
    ``free``: as node_groups.free_numbers(). ``problem``: what is wrong with its group. ``backend``: of that.
    """

    intra: Any
    machine: str
    gpu: str | None
    key: str
    free: Sequence[int] = ()
    problem: str | None = None
    backend: str | None = None


def node_passes(
    intra: Any, operations: TensorOperations, parameters: Sequence[torch.Tensor], size: int
) -> NodePasses | None:
    """For a wrapper's argument ``intra``; None: gradients go the plain way. All members of the group call it.

    Where those are all ranks of the job, groups like ``intra`` are made, else the wrapper has that one to itself.

    Raises ValueError on all of them if what they were given makes no nodes, ConfigurationError on all of them if
    ``torch.distributed`` has other ranks than the job or another wrapper has the group to itself, and what the group's
    collectives raise.
    """
    of_all = len(operations.group.ranks) == size
    gpu = _gpu(parameters, size) if intra is None and of_all else None
    may_have_nodes = intra != OFF and (intra is not None or gpu is not None)
    own, thread = own_words(
        intra,
        operations.here,
        "shoal-node-passes" if may_have_nodes else None,
        gpu,
        lambda: _problem_with(intra, operations, size, of_all),
    )
    told = heard(operations.group.ranks, operations.allgather(PLACES, own))
    found = decided(told)
    backends = {its.backend for its in told.values()}  # None on all ranks or on none
    if of_all and len(backends) > 1:
        raise ConfigurationError(
            f"intra is on {' and '.join(sorted(map(str, backends)))}: give every rank a group on the same backends"
        )
    if found is None or thread is None:
        return None
    if of_all:
        found = [sorted(node) for node in found]  # as new_group has them
    (ranks,) = (node for node in found if runtime.rank() in node)
    backend = told[runtime.rank()].backend or "nccl"
    free = [its.free for its in told.values()]

    def group_for(owner: Nodes) -> NodeGroup:
        return node_groups.take(owner, found, backend, free) if of_all else node_groups.lend(owner, found, intra)

    made = Nodes(found, group_for)
    _log.info(
        "%s: gradients are summed inside %d nodes of %d ranks, and averaged in slices; this node: ranks %s",
        operations.here,
        len(found),
        made.members,
        ranks,
    )
    passes = NodePasses(made, operations, told[ranks[0]].key, thread)
    passes.try_out(dict.fromkeys(parameter.device for parameter in parameters))
    return passes


def own_words(
    intra: Any,
    here: str,
    thread: str | None,
    gpu: str | None = None,
    problem_with: Callable[[], str | None] = lambda: None,
    by_default: str | None = None,
) -> tuple[np.ndarray[Any, Any], OwnThread | None]:
    """What this rank says, a line of bytes, and the thread that its node needs. ``thread``: its name; None: it has no node.
    ``by_default``: the backend where no ``intra`` is given.

    Whatever goes wrong is said: the other ranks wait for what this one says.
    """
    ranks, backend, problem, made = intra, by_default, None, None
    try:
        if intra is not None and intra != OFF:
            ranks, backend = dist.get_process_group_ranks(intra), str(dist.get_backend_config(intra))
            problem = problem_with()
        made = None if thread is None else OwnThread(thread)
    except Exception as error:
        ranks, problem = [], f"{here}: {type(error).__name__}: {error}"
    own = Told(ranks, topology.machine(), gpu, os.urandom(8).hex(), node_groups.free_numbers(), problem, backend)
    return np.frombuffer((json.dumps(own) + "\n").encode(), np.uint8), made


def heard(ranks: Iterable[int], lines: np.ndarray[Any, Any]) -> dict[int, Told]:
    """What each of these ranks has said. Raises ConfigurationError where one said a problem."""
    each = lines.tobytes().decode().splitlines()
    told = {rank: Told(*json.loads(line)) for rank, line in zip(ranks, each, strict=True)}
    problem = next((its.problem for its in told.values() if its.problem is not None), None)
    if problem is not None:
        raise ConfigurationError(problem)
    return told


def decided(told: Mapping[int, Told]) -> list[list[int]] | None:
    """The ranks of each node. ``told``: by rank, in the group's order. None: there are none, or uneven ones.

    Raises ValueError if what the ranks were given makes no nodes.
    """
    asked = {rank: its.intra for rank, its in told.items() if isinstance(its.intra, list)}
    if asked:
        found = of_groups(asked)
        if told.keys() != {rank for node in found for rank in node} or told.keys() != asked.keys():
            raise ValueError(
                f"the groups that are given as intra have the ranks {sorted(asked)}, and those that wrap the module are "
                f"{sorted(told)}: give every rank that wraps it the group of its node"
            )
        return found if are_even(found) else None
    if any(its.intra == OFF or its.gpu is None for its in told.values()):
        return None
    found = of_machines((rank, its.machine) for rank, its in told.items())
    is_apart = all(len({told[rank].gpu for rank in node}) == len(node) for node in found)
    return found if are_even(found) and is_apart else None


def are_even(found: Sequence[Sequence[int]]) -> bool:
    """Whether all nodes have the same number of ranks, and not one each."""
    return {len(node) for node in found} not in ({1}, set()) and len({len(node) for node in found}) == 1


def of_machines(names: Iterable[tuple[int, str]]) -> list[list[int]]:
    """The ranks on each machine, in the order of their first ranks."""
    machines: dict[str, list[int]] = {}
    for rank, name in names:
        machines.setdefault(name, []).append(rank)
    return list(machines.values())


def of_groups(told: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """``told``: by rank, the ranks of its group. Raises ValueError if those are not the same for all of them."""
    found: dict[int, list[int]] = {}
    for rank, its in told.items():
        node = list(its)
        for other in (node[0], *node):
            others = list(told.get(other, node))
            if others != node or rank not in node:
                raise ValueError(
                    f"rank {rank} is in a node of the ranks {node}, but rank {other} in one of {others}: give all ranks of "
                    "a node the same process group as intra"
                )
        found[node[0]] = node
    return list(found.values())


def _problem_with(intra: Any, operations: TensorOperations, size: int, of_all: bool) -> str | None:
    if (dist.get_rank(), dist.get_world_size()) != (runtime.rank(), size):
        return (
            f"{operations.here}: intra is a group of torch.distributed, for which this is rank {dist.get_rank()} of "
            f"{dist.get_world_size()}: both must count the same ranks"
        )
    if not of_all and node_groups.is_lent(intra):
        return (
            f"{operations.here}: another wrapper has intra to itself: where some ranks alone wrap modules, make a group for "
            "each wrapper (torch.distributed.new_group)"
        )
    return None


def _gpu(parameters: Sequence[torch.Tensor], size: int) -> str | None:
    """Tells it from the others of its machine."""
    devices = {parameter.device for parameter in parameters}
    if len(devices) != 1 or {device.type for device in devices} != {"cuda"}:
        return None
    if not (dist.is_available() and dist.is_initialized() and dist.is_nccl_available()):
        return None
    if (dist.get_rank(), dist.get_world_size()) != (runtime.rank(), size):
        return None
    (device,) = devices
    properties = torch.cuda.get_device_properties(device)
    return str(getattr(properties, "uuid", f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {device.index}"))
