"""What a run of the benchmark found, as data: written to JSON and read back, shown by ``table`` and ``plot``.

Times in seconds, rates in bytes per second, sizes in bytes.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from shoal.bench.bound import bound
from shoal.bench.naming import SHOAL, family

FORMAT = 1

_T = TypeVar("_T")


def _seen(values: Iterable[_T | None]) -> list[_T]:
    """Without those that could not be seen."""
    return [value for value in values if value is not None]


@dataclass(frozen=True)
class Turn:
    """One timed turn of one contestant, per operation.

    ``seconds``: from the first rank's submission to the last rank's completion. ``rank_cpu`` and ``server_cpu``: processor
    time of all ranks and of all dedicated servers. ``busy``: processor time of the whole machine, the kernel's work for no
    process included. ``wire_bytes``: sent on all links together, headers included (of shaped links: every frame's). ``drops``: packets that shapers threw
    away. ``others_mean``, ``others_least``: payload of other flows on the same links, bytes per second, and that of the flow
    that got least. None for what could not be seen from here.
    """

    seconds: float
    rank_cpu: float
    server_cpu: float | None = None
    busy: float | None = None
    wire_bytes: float | None = None
    drops: int | None = None
    others_mean: float | None = None
    others_least: float | None = None

    @property
    def cpu(self) -> float:
        return self.rank_cpu + (self.server_cpu or 0.0)


@dataclass(frozen=True)
class Result:
    """All turns of one contestant at one size. ``repetitions``: operations in a turn, one after another."""

    contestant: str
    size: int
    repetitions: int
    turns: tuple[Turn, ...]

    @property
    def seconds(self) -> float:
        """The median time of an operation."""
        return statistics.median(turn.seconds for turn in self.turns)

    @property
    def fastest(self) -> float:
        return min(turn.seconds for turn in self.turns)

    @property
    def slowest(self) -> float:
        return max(turn.seconds for turn in self.turns)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third; of one turn, that one."""
        times = [turn.seconds for turn in self.turns]
        if len(times) == 1:
            return times[0], times[0]
        first, _, third = statistics.quantiles(times, n=4, method="inclusive")
        return first, third

    @property
    def bandwidth(self) -> float:
        """Algorithm bandwidth: the size of the buffer by the median time."""
        return self.size / self.seconds

    @property
    def cpu_per_gb(self) -> float:
        """Processor seconds of all ranks and servers for 10^9 bytes averaged; the median."""
        return statistics.median(turn.cpu for turn in self.turns) / self.size * 1e9

    @property
    def busy_per_gb(self) -> float | None:
        """As ``cpu_per_gb``, for the whole machine. The mean, since the kernel counts in steps of 10 ms."""
        seen = _seen(turn.busy for turn in self.turns)
        return statistics.mean(seen) / self.size * 1e9 if seen else None

    @property
    def wire_bytes(self) -> float | None:
        """Sent for one operation on all links together; the median."""
        seen = _seen(turn.wire_bytes for turn in self.turns)
        return statistics.median(seen) if seen else None

    @property
    def drops(self) -> int | None:
        """Packets thrown away by shapers in all turns."""
        seen = _seen(turn.drops for turn in self.turns)
        return sum(seen) if seen else None

    @property
    def others_mean(self) -> float | None:
        """Bytes per second of the other flows on the same links, on average; the median over the turns."""
        seen = _seen(turn.others_mean for turn in self.turns)
        return statistics.median(seen) if seen else None

    @property
    def others_least(self) -> float | None:
        """As ``others_mean``, for the flow that got least in each turn."""
        seen = _seen(turn.others_least for turn in self.turns)
        return statistics.median(seen) if seen else None


@dataclass(frozen=True)
class Network:
    """The links between the hosts of a run.

    ``rate``: payload of one TCP flow between two hosts. ``shaped``: whether links have a speed of their own that bounds
    anything (on loopback they have none). ``burst``: bytes that a link lets through for nothing after a pause.
    ``node_factors``, ``server_factors``: each link's speed as a multiple of ``rate``.
    """

    rate: float
    shaped: bool
    burst: int = 0
    node_factors: tuple[float, ...] = ()
    server_factors: tuple[float, ...] = ()

    def bound(self, contestant: str, size: int, repetitions: int = 1) -> float | None:
        """The least time of an operation of this contestant's kind, of so many one after another.

        Links let a burst through for nothing once, not for each of them. None where links have no speed of their own, and
        where the burst is all that an operation needs.
        """
        if not self.shaped:
            return None
        nodes = [factor * self.rate for factor in self.node_factors]
        servers = [factor * self.rate for factor in self.server_factors] if family(contestant) == SHOAL else []
        return bound(size, nodes, servers, self.burst / repetitions) or None


@dataclass(frozen=True)
class Report:
    """``facts``: machine, kernel, versions, date, as text by name. ``missing``: contestant → why it took no part.
    ``limits``: of Shoal and its variants, the sizes in bytes that held, whether found or given."""

    title: str
    ranks: int
    nodes: int
    servers: int
    network: Network
    results: tuple[Result, ...]
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    limits: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def contestants(self) -> list[str]:
        """In the order in which they took turns."""
        return list(dict.fromkeys(result.contestant for result in self.results))

    @property
    def sizes(self) -> list[int]:
        return list(dict.fromkeys(result.size for result in self.results))

    def result(self, contestant: str, size: int) -> Result:
        """Raises KeyError."""
        for result in self.results:
            if (result.contestant, result.size) == (contestant, size):
                return result
        raise KeyError((contestant, size))

    def bound_ratio(self, contestant: str, size: int) -> float | None:
        """Median time by the least time for that kind of all-reduce on these links."""
        result = self.result(contestant, size)
        least = self.network.bound(contestant, size, result.repetitions)
        return None if least is None else result.seconds / least

    def speedup(self, rival: str, size: int, of: str = "shoal") -> float:
        """How many times as fast as ``rival`` the contestant ``of`` was, by medians."""
        return self.result(rival, size).seconds / self.result(of, size).seconds

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> "Report":
        """Raises ValueError for what is not a report of this format."""
        content: dict[str, Any] = json.loads(text)
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"this is not a report of shoal bench, format {FORMAT}")
        try:
            network = content.pop("network")
            network["node_factors"] = tuple(network["node_factors"])
            network["server_factors"] = tuple(network["server_factors"])
            results = [_result(entry) for entry in content.pop("results")]
            return Report(network=Network(**network), results=tuple(results), **content)
        except (TypeError, KeyError) as error:
            raise ValueError(f"this is not a report of shoal bench: {error}") from None


def _result(entry: dict[str, Any]) -> Result:
    turns: Sequence[dict[str, Any]] = entry.pop("turns")
    return Result(turns=tuple(Turn(**turn) for turn in turns), **entry)
