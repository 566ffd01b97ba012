"""The limits of a job from its size and what was measured of its network. Six rules:

1. What all nodes may have in flight toward one port is twice what the wire holds, in 240 KiB to 4 MiB: above what the
   wire needs, below what a switch's queue holds.
2. That is two segments of every node, of at most 60 KiB: one is on its way while the other is answered.
3. A port has at most 60,000 segments a second, since waking up for each costs a processor. Where two such segments of
   every node are more than 768 KiB and than a millisecond of the wire, a node has one.
4. An operation has no more servers than leave each what a link moves in 10 µs.
5. Beside dedicated servers, operations of few segments have smaller ones, down to 8 KiB or 65 µs of the wire.
6. Where each rank of a node sends for itself, in a group of one rank a node for example, rules 1 to 3 count ranks.

docs/decisions/windows.md, short-operations.md and shards.md have figures.
"""

from collections.abc import Mapping
from dataclasses import asdict

from shoal.config.settings import SEGMENT_ALIGNMENT, Limits
from shoal.tuning.measured import Network

KIB = 1024

# Bytes in flight toward a port: this many times what the wire holds, within what switches can keep. Where
# processors keep up, a tenth of the least is in the port's queue. All of it, with headers, fits into 256 KiB.
_ROUND_TRIPS = 2
_LEAST_IN_FLIGHT = 240 * KIB
_MOST_IN_FLIGHT = 4096 * KIB

# Seconds until a process answers what has arrived, beside the network's round trip.
_WAKE_UP = 200e-6

# A port's segments a second: more keep a processor busy with wake-ups alone.
_MOST_SEGMENTS = 60_000

# Two of the smallest segments of every node may be more in flight than that: so many bytes, or so many seconds of the wire.
# At worst half of it, one segment of each, is in the port's queue.
_MOST_OF_SMALLEST = 768 * KIB
_MOST_SECONDS_OF_SMALLEST = 1e-3

_SEGMENTS_OF_WINDOW = 2
_SEGMENT_STEP = 256
# With its header it leaves as one piece of segmentation offload, which carries less than 64 KiB at any usual MTU.
_LARGEST_SEGMENT = 60 * KIB
_LARGEST_SMALL = 16 * KIB

# The smallest segments of short operations: so many bytes, and so many seconds of the wire.
_LEAST_OF_SHORT = 8 * KIB
_LEAST_SECONDS_OF_SHORT = 65e-6

# Seconds of a processor that one more server costs a node: a frame there and a frame back.
_FRAMES = 10e-6


def limits_for(network: Network | None, flows: int, overrides: Mapping[str, int], ranks: int = 1) -> Limits:
    """``network``: None if nothing was measured: one machine, where the defaults are good. ``flows``: connections from
    nodes to a server, over all its lanes. ``overrides``: limits given by hand, by name. ``ranks``: of the largest node.

    What is not given fits to what is. Raises ConfigurationError where overrides contradict each other.
    """
    found = asdict(Limits() if network is None else _limits_of(network, flows))
    if network is not None and ranks > 1 and not {"segment", "credit"} & overrides.keys():
        each = _limits_of(network, ranks * flows)
        found |= {"rank_segment": each.segment, "rank_credit": each.credit}
    if "segment" in overrides:
        found["credit"] = max(found["credit"], overrides["segment"])
        found["least_segment"] = 0
    elif "credit" in overrides:
        found["segment"] = max(
            SEGMENT_ALIGNMENT, min(found["segment"], _rounded(overrides["credit"], SEGMENT_ALIGNMENT))
        )
    found["small"] = min(found["small"], overrides.get("segment", found["segment"]))
    found["least_segment"] = min(found["least_segment"], found["segment"])
    return Limits(**{**found, **overrides})


def _limits_of(network: Network, flows: int) -> Limits:
    each = in_flight(network) // flows
    segment = min(_LARGEST_SEGMENT, max(_rounded(each // _SEGMENTS_OF_WINDOW, _SEGMENT_STEP), _least_segment(network)))
    window = _SEGMENTS_OF_WINDOW * segment
    credit = max(window if window * flows <= most_of_smallest(network) else segment, _rounded(each, segment))
    return Limits(
        segment=segment,
        credit=credit,
        eager=credit,
        small=min(_LARGEST_SMALL, segment),
        least_shard=_least_shard(network),
        least_segment=_least_segment_of_short(network, segment),
    )


def in_flight(network: Network) -> int:
    """Bytes that all nodes together may have unanswered toward one server."""
    wire = network.rate * (network.round_trip + _WAKE_UP)
    return round(min(_MOST_IN_FLIGHT, max(_LEAST_IN_FLIGHT, _ROUND_TRIPS * wire)))


def most_of_smallest(network: Network) -> int:
    """The same, where segments are as small as they get."""
    return round(max(_MOST_OF_SMALLEST, min(_MOST_IN_FLIGHT, network.rate * _MOST_SECONDS_OF_SMALLEST)))


def _least_segment(network: Network) -> int:
    enough = network.rate // _MOST_SEGMENTS
    return max(_SEGMENT_STEP, _rounded(enough + _SEGMENT_STEP - 1, _SEGMENT_STEP))


def _least_segment_of_short(network: Network, segment: int) -> int:
    least = max(_LEAST_OF_SHORT, _rounded(round(network.rate * _LEAST_SECONDS_OF_SHORT), SEGMENT_ALIGNMENT))
    return least if network.server_rates and least < segment else 0


def _least_shard(network: Network) -> int:
    return max(SEGMENT_ALIGNMENT, round(network.rate * _FRAMES))


def _rounded(size: int, step: int) -> int:
    return size // step * step
