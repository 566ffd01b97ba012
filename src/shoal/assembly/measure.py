"""The second phase of the rendezvous: has all links measured, in the rounds of tuning.probe_schedule."""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence

from shoal.assembly.control_links import MEASURED, PREPARED, ControlLinks, GaveUp, Joining
from shoal.assembly.rails import RailPlaces
from shoal.net import messages
from shoal.tuning.measured import Network
from shoal.tuning.probe import ProbeResult
from shoal.tuning.probe_schedule import ProbeSchedule, Round

_log = logging.getLogger("shoal")

# Seconds for all ranks to connect for measuring, or to measure once: several times what it takes.
_LIMIT = 5.0


async def measure(
    links: ControlLinks, rails: Sequence[RailPlaces], incarnation: bytes, one_too_many: Callable[[Joining], object]
) -> list[Network | None]:
    """All ranks are here: what was measured of their links on each rail, one rail after another, and of the servers'.

    None on one machine. What goes wrong in measuring is a warning, and joining goes on.
    """
    schedules = [ProbeSchedule(rail.addresses, rail.servers) for rail in rails]
    if not any(schedule.first_rounds() for schedule in schedules):
        return [None for _ in rails]
    for member in links.in_order():
        await links.send(member, messages.pack("measure", {"incarnation": incarnation.hex()}))
    numbers = itertools.count()
    return [
        await _measure_rail(links, rail, schedule, numbers, one_too_many)
        for rail, schedule in zip(rails, schedules, strict=True)
    ]


async def _measure_rail(
    links: ControlLinks,
    rail: RailPlaces,
    schedule: ProbeSchedule,
    numbers: Iterator[int],
    one_too_many: Callable[[Joining], object],
) -> Network | None:
    """``numbers``: of the rounds. After a round that was given up, answers may still come on the next rail."""
    try:
        for pairs in schedule.first_rounds():
            await _measure_round(links, rail, schedule, pairs, next(numbers), one_too_many)
        for pairs in schedule.second_look():
            await _measure_round(links, rail, schedule, pairs, next(numbers), one_too_many)
    except GaveUp as error:
        _log.warning("not all links were measured: %s", error)
    if unknown := schedule.unknown():
        _log.warning("links that could not be measured count as like most others: %s", ", ".join(unknown))
    return schedule.network()


async def _measure_round(
    links: ControlLinks,
    rail: RailPlaces,
    schedule: ProbeSchedule,
    pairs: Round,
    number: int,
    one_too_many: Callable[[Joining], object],
) -> None:
    """All callers begin together, once all are connected."""
    callers = [pair.rank for pair in pairs]
    for pair in pairs:
        source = rail.addresses[pair.rank].host if rail.names else None
        call = {"round": number, "address": pair.called.address, "both": pair.both, "source": source}
        await links.send(links.members[pair.rank], messages.pack("call", call))
    await links.hear_all(PREPARED, callers, _LIMIT, "to connect for measuring", one_too_many, number)
    begin = messages.pack("begin", {"round": number})
    for rank in callers:
        await links.send(links.members[rank], begin)
    found = await links.hear_all(MEASURED, callers, _LIMIT, "to measure a link", one_too_many, number)
    for pair in pairs:
        schedule.note(pair, ProbeResult.parse(found[pair.rank]))
