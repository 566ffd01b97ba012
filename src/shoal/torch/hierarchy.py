"""Gradients of nodes with several accelerators, for PyTorch's own DistributedDataParallel: see nodes.py.

Invariant: the ranks of a node call the same collectives of the node in the same order: the reduce-scatters of a pass in
the order of its buckets, on the thread that computes gradients; after the last, the all-gathers in the same order, on a
thread of the hierarchy's. The averages between nodes are called by that thread too, bucket by bucket.
"""

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from shoal.assembly.terms import rank_name
from shoal.errors import ConfigurationError, ShoalError
from shoal.job import unheard
from shoal.job.groups import Group
from shoal.ops import callbacks, collectives, operations, submissions
from shoal.ops.operations import Plan
from shoal.ops.submissions import AnyHandle, StagedHandle
from shoal.torch import accelerators, node_groups, node_places
from shoal.torch.c10d import membership
from shoal.torch.c10d.call_sites import CallSite
from shoal.torch.c10d.futures import OperationFuture
from shoal.torch.c10d.tensors import Flat
from shoal.torch.node_trouble import GRACE, LOOKS_EVERY, NodeTrouble
from shoal.torch.nodes import Nodes
from shoal.torch.staging import Transfers

# How often a hierarchy's threads look whether it is still there, in seconds.
_LOOKS_FOR_ITSELF = 2.0

_ELSEWHERE = "another rank of this node could not average its slice of the gradients; see what it says"


class Hierarchy:
    """How the ranks lie in nodes, for ``shoal.torch.comm_hook``: ``model.register_comm_hook(Hierarchy(), comm_hook)``.

    Every rank makes it, after ``init_process_group``, as often and in the same order as the others.

    Arguments:
        intra: the process group of the ranks of this rank's node, of PyTorch's, on any backend that has
            ``reduce_scatter_tensor`` and ``all_gather_into_tensor`` for the gradients' device: NCCL, gloo, "shoal". Its
            collectives go by a group like it that the hierarchy makes. None: nodes are the ranks on each machine, on NCCL
            where there are CUDA devices and on gloo elsewhere.

    Where the nodes have different numbers of ranks, or one rank each, gradients go as without it.

    Raises ValueError on every rank if ``intra`` is not the same group for all of its ranks, ConfigurationError if nodes
    have different backends.
    """

    def __init__(self, intra: Any = None) -> None:
        membership.join_default()
        everyone = Group(range(dist.get_world_size()), name="hierarchy")
        here = rank_name(everyone.session.rank, everyone.session.hosts)
        by_default = "nccl" if torch.cuda.is_available() else "gloo"
        own, thread = node_places.own_words(intra, here, "shoal-hierarchy", by_default=by_default)
        told = node_places.heard(everyone.ranks, collectives.allgather(own, None, everyone))
        if len({its.intra is None for its in told.values()}) > 1:
            raise ConfigurationError("Hierarchy: some ranks were given no intra: give every rank the group of its node")
        if intra is None:
            found = node_places.of_machines((rank, its.machine) for rank, its in told.items())
        else:
            found = node_places.of_groups({rank: its.intra for rank, its in told.items()})
        found = [sorted(node) for node in found]  # as new_group has them
        self.nodes = found
        """The ranks of each node, in the order of their places."""
        self.members = len(found[0]) if node_places.are_even(found) else 1
        """Ranks a node; 1: the hierarchy has no effect."""
        if self.members == 1 or thread is None:
            return
        backends = {str(its.backend) for its in told.values()}
        if len(backends) > 1:
            raise ConfigurationError(
                f"Hierarchy: ranks have {' and '.join(sorted(backends))} inside nodes: give all the same"
            )
        (backend,) = backends
        free = [its.free for its in told.values()]
        self._inside = Nodes(found, lambda owner: node_groups.take(owner, found, backend, free))
        self._between = self._inside.between
        settings = self._between.session.settings
        self._in_stream = settings.waits_in_stream(by_default=True)
        self._transfers = Transfers(self._in_stream)
        self._here = self._inside.here
        self._call_site = CallSite(f"hierarchy {self._between}")
        self._trouble = NodeTrouble(everyone.session, self._inside, told[self._inside.ranks[0]].key)
        self._started: list[tuple[_Bucket, AnyHandle | Exception | None]] = []  # on the thread
        self._open: set[_Bucket] = set()  # of a pass that is on
        self._has_open = threading.Event()
        self._is_on = False  # a pass has begun and not come to its last bucket
        self._thread = thread
        watch = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._has_open), name="shoal-hierarchy-watch", daemon=True
        )
        watch.start()

    def begin_pass(self) -> None:
        """Before its first bucket. Raises ShoalError where the pass before was left before its last one."""
        with self._telling():
            if self._is_on:
                raise ShoalError("a backward pass was left before all of its buckets had come")
        self._is_on = True

    def end_pass(self) -> None:
        """After its last bucket."""
        self._is_on = False
        self._thread.do(self._finish_pass)

    def average(self, buffer: torch.Tensor) -> OperationFuture:
        """The mean of the gradients in ``buffer`` over all ranks, in its own memory.

        Raises what the reduce-scatter raises. Whatever else goes wrong is raised by who waits for the future.
        """
        elements = buffer.detach().view(-1)
        device = [] if buffer.is_cpu else [buffer.device]
        self._inside.follow(elements)
        with self._inside.beside(elements), self._telling():
            works = self._inside.scatter(elements)
        future = OperationFuture(self._call_site.operation(), device)
        self._put(_Bucket(buffer, elements, works, future, threading.Lock()))
        return future

    def _put(self, bucket: "_Bucket") -> None:
        self._open.add(bucket)
        self._has_open.set()
        self._thread.do(partial(self._serve, bucket))

    def _settle(self, bucket: "_Bucket", error: Exception | None) -> None:
        self._open.discard(bucket)
        if not bucket.settled.acquire(blocking=False):
            return  # it was given up
        if error is None:
            bucket.future.set_result(bucket.buffer)
        else:
            bucket.future.set_exception(error)

    def look(self) -> None:
        """Whoever waits for buckets whose collectives may have no end hears of it."""
        if not self._open:
            self._has_open.clear()
            # One that came meanwhile has set it before.
            if self._open:
                self._has_open.set()
        elif self._trouble.look() is not None:
            time.sleep(GRACE)
            self._end_job()
            for bucket in list(self._open):
                self._settle(bucket, self._trouble.failure)

    def _serve(self, bucket: "_Bucket") -> None:
        """On the hierarchy's thread."""
        try:
            self._started.append((bucket, self._start(bucket)))
        except Exception as error:
            self._started.append((bucket, error))

    def _finish_pass(self) -> None:
        """On the hierarchy's thread."""
        failed: list[tuple[_Bucket, Exception]] = []
        for bucket, handle in self._started:
            try:
                error = self._finish(bucket, handle)
            except Exception as failure:
                error = failure
            if error is not None:
                failed.append((bucket, error))
        if self._in_stream and any(not bucket.buffer.is_cpu for bucket, _ in self._started):
            self._tell_node([handle for _, handle in self._started])
        self._started.clear()
        # Whoever hears of an error may begin the next pass: not while this thread still calls collectives of the node.
        for bucket, error in failed:
            self._settle(bucket, error)

    def _tell_node(self, handles: list[AnyHandle | Exception | None]) -> None:
        """After a pass for which only streams wait: what has failed on one rank of the node is an error on all of them."""
        failure: Exception | None = None
        for handle in handles:
            if isinstance(handle, Exception):
                failure = failure or handle
            elif isinstance(handle, StagedHandle):
                failure = failure or handle.await_end()
        failed = np.array([failure is not None], np.uint8)
        try:
            collectives.allreduce_(failed, "max", "failed", self._here)
        except RuntimeError as error:
            unheard.note(error)
            return
        if failed[0] and failure is None:
            unheard.note(ShoalError(_ELSEWHERE))

    def _start(self, bucket: "_Bucket") -> AnyHandle | None:
        """The average between the nodes, of this rank's slice."""
        with self._inside.beside(bucket.elements):
            with self._telling():
                for work in bucket.works:
                    work.wait()
            own = self._inside.own_of(bucket.elements)
            if not own.numel() or self._inside.count == 1:
                return None
            device = accelerators.of([own])
            transfer = None if device is None else self._transfers.begin(device, waits=False)
            flat = Flat(own, transfer)

            def plan(group: Group) -> Plan:
                return flat.filled_by(operations.allreduce(group, flat.elements, "mean", in_place=True))

            return submissions.submit("averaging a slice of the gradients", None, self._between, plan, None, transfer)

    def _finish(self, bucket: "_Bucket", handle: AnyHandle | Exception | None) -> Exception | None:
        """Returns what has gone wrong; if nothing has, who waits for the bucket has been told."""
        error: Exception | None = None
        with self._inside.beside(bucket.elements):
            try:
                if isinstance(handle, Exception):
                    raise handle
                if handle is not None:
                    submissions.wait_in_stream_or_here(handle)
            except Exception as failure:
                error = failure
            try:
                self._gather(bucket, error)
            except Exception as failure:
                error = error or failure
            if error is None:
                self._settle(bucket, None)
        return error

    def _gather(self, bucket: "_Bucket", error: Exception | None) -> None:
        """The node's slices. Raises ShoalError where another rank of the node has none, as long as the host can know."""
        if error is not None and bucket.elements.is_floating_point():
            self._inside.own_of(bucket.elements).fill_(torch.nan)
        if not self._in_stream or bucket.buffer.is_cpu:
            failed = torch.tensor([int(error is not None)], dtype=torch.int32, device=bucket.buffer.device)
            with self._telling():
                dist.all_reduce(failed, dist.ReduceOp.MAX, group=self._inside.intra)
            if failed.item():
                raise ShoalError(_ELSEWHERE)
        with self._telling():
            self._inside.gather(bucket.elements)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """The node's ranks hear of what its collectives raise in here."""
        if self._trouble.failure is not None:
            raise self._trouble.failure
        try:
            yield
        except Exception as error:
            failure = self._trouble.tell(error)
            self._end_job()
            raise failure from error

    def _end_job(self) -> None:
        """The ranks of other nodes hear why. They wait for averages that have no names, and cannot be failed one by one."""
        self._between.session.abort(str(self._trouble.failure))


@dataclass(frozen=True, eq=False)
class _Bucket:
    """``elements``: of ``buffer``. ``works``: what sums them in the node. ``future``: of ``buffer``, with the mean.

    ``settled``: taken by who has set that.
    """

    buffer: torch.Tensor
    elements: torch.Tensor
    works: list[Any]
    future: OperationFuture
    settled: threading.Lock


def _watch(reference: "weakref.ref[Hierarchy]", has_open: threading.Event) -> None:
    # Nobody wakes it when the hierarchy goes: that may be in the midst of this wait, by the garbage collector.
    while not callbacks.are_over():
        is_open = has_open.wait(_LOOKS_FOR_ITSELF)
        if is_open:
            time.sleep(LOOKS_EVERY)
        hierarchy = reference()
        if hierarchy is None:
            return
        if is_open:
            hierarchy.look()
        del hierarchy
