"""Nodes of several ranks, inside which gradients are summed by a collective library that knows their buses.

For L ranks a node, whoever has a place among them averages 1 / L of the gradients, its slice, with the ranks at the
same place in the other nodes, after the Herring paper (section "Herring Workflow", steps 1 to 6):

    scatter     sums inside the node; each rank has the sum of its slice, where that lies
    between     averages the slice with the other nodes, through Shoal
    gather      gives the slices to all ranks of the node

Invariant: the ranks of a node call the same collectives of the node in the same order. That is for the caller to see to.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from shoal import _native
from shoal.gradients.layout import Extent
from shoal.job.groups import Group
from shoal.torch import accelerators, versions
from shoal.torch.accelerators import Stream
from shoal.torch.node_groups import NodeGroup

_reduce_scatter = versions.collective("reduce_scatter_single")
_all_gather = versions.collective("all_gather_single")


class Nodes:
    """``nodes``: the ranks of each, all of one size; this rank is in one.

    ``group_for``: its process group for this object, which has that to itself.
    """

    def __init__(self, nodes: Sequence[Sequence[int]], group_for: "Callable[[Nodes], NodeGroup]") -> None:
        rank = dist.get_rank()
        (ranks,) = (node for node in nodes if rank in node)
        self.ranks = list(ranks)
        """Those of this node, in the order of their places."""
        self.members = len(self.ranks)
        self.place = self.ranks.index(rank)
        self.node_group = group_for(self)
        self.intra = self.node_group.group
        self.count = len(nodes)
        if self.node_group.between is None:
            self.node_group.between = Group([node[self.place] for node in nodes], name=f"place {self.place}")
        self.between = self.node_group.between
        """The ranks at this place, of all nodes."""
        self._streams: dict[torch.device, tuple[Any, _native.Ways]] = {}

    @property
    def here(self) -> Group:
        """The ranks of this node, by Shoal."""
        if self.node_group.here is None:
            self.node_group.here = Group(self.ranks, name="node")
        return self.node_group.here

    def own(self, count: int) -> Extent:
        """Of so many elements, this rank's slice. The last place has what is left over, too."""
        part = count // self.members
        begin = self.place * part
        return Extent(begin, count if self.place == self.members - 1 else begin + part)

    def own_of(self, elements: torch.Tensor) -> torch.Tensor:
        """This rank's slice of them, a view."""
        return elements[slice(*self.own(elements.numel()))]

    def scatter(self, elements: torch.Tensor) -> list[Any]:
        """Starts to sum. What is waited for leaves in the own slice its share of the mean over the node."""
        # As DistributedDataParallel does it: before, so that 16-bit sums stay in their range.
        elements /= self.members
        part, begin = self._cut(elements)
        main, rest = elements[: part * self.members], elements[part * self.members :]
        works = []
        if part:
            own = elements[begin : begin + part]
            works.append(_reduce_scatter(own, main, group=self.intra, async_op=True))
        if rest.numel():
            works.append(dist.reduce(rest, dst=self.ranks[-1], group=self.intra, async_op=True))
        return works

    def gather(self, elements: torch.Tensor) -> None:
        """All slices, from those who have them. Waits, or leaves that to the current stream of the device."""
        part, begin = self._cut(elements)
        main, rest = elements[: part * self.members], elements[part * self.members :]
        if part:
            _all_gather(main, elements[begin : begin + part], group=self.intra, async_op=True).wait()
        if rest.numel():
            dist.broadcast(rest, src=self.ranks[-1], group=self.intra, async_op=True).wait()

    def follow(self, elements: torch.Tensor, made_in: Iterable[Stream] = ()) -> None:
        """What comes ``beside`` from now on finds what the current stream has made there, and these others."""
        if elements.is_cpu:
            return
        device = elements.device
        with torch.cuda.device(device):
            stream = self._stream(elements)
            stream.wait_stream(torch.cuda.current_stream(device))
            for other in made_in:
                stream.wait_stream(torch.cuda.ExternalStream(other, device))  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self, elements: torch.Tensor) -> Iterator[None]:
        """In a stream of its own, of the device that they are on."""
        if elements.is_cpu:
            yield
            return
        with torch.cuda.device(elements.device), torch.cuda.stream(self._stream(elements)):
            yield

    def synchronize(self, elements: torch.Tensor) -> None:
        """Waits until that stream has done everything."""
        if not elements.is_cpu:
            self._stream(elements).synchronize()

    def _cut(self, elements: torch.Tensor) -> tuple[int, int]:
        """How many elements a slice has, and where the own begins."""
        part = elements.numel() // self.members
        return part, self.place * part

    def _stream(self, elements: torch.Tensor) -> Any:
        device = elements.device
        if device not in self._streams:
            # Not one of PyTorch's, which are the program's too.
            native = accelerators.of([elements])
            assert native is not None, "they are on a device"
            ways = _native.Ways(native.native)
            made = torch.cuda.ExternalStream(ways.out, device), ways  # type: ignore[no-untyped-call]
            return self._streams.setdefault(device, made)[0]
        return self._streams[device][0]
