"""The second phase of the rendezvous: has all links measured, in the rounds of tuning.probe_schedule."""

import logging
from collections.abc import Callable, Sequence

from shoal.assembly.control_links import MEASURED, PREPARED, ControlLinks, GaveUp, Joining
from shoal.config.addresses import Address
from shoal.net import messages
from shoal.tuning.measured import Network
from shoal.tuning.probe import ProbeResult
from shoal.tuning.probe_schedule import ProbeSchedule, Round

_log = logging.getLogger("shoal")

# Seconds for all ranks to connect for measuring, or to measure once: several times what it takes.
_LIMIT = 5.0


async def measure(
    links: ControlLinks, servers: Sequence[Address], incarnation: bytes, one_too_many: Callable[[Joining], object]
) -> Network | None:
    """All ranks are here: what was measured of their links, and of those of the dedicated ``servers``.

    None on one machine. What goes wrong in measuring is a warning, and joining goes on.
    """
    members = links.in_order()
    schedule = ProbeSchedule([member.address for member in members], servers)
    rounds = schedule.first_rounds()
    if not rounds:
        return None
    for member in members:
        await links.send(member, messages.pack("measure", {"incarnation": incarnation.hex()}))
    try:
        for pairs in rounds:
            await _measure_round(links, schedule, pairs, one_too_many)
        for pairs in schedule.second_look():
            await _measure_round(links, schedule, pairs, one_too_many)
    except GaveUp as error:
        _log.warning("not all links were measured: %s", error)
    if unknown := schedule.unknown():
        _log.warning("links that could not be measured count as like most others: %s", ", ".join(unknown))
    return schedule.network()


async def _measure_round(
    links: ControlLinks, schedule: ProbeSchedule, pairs: Round, one_too_many: Callable[[Joining], object]
) -> None:
    """All callers begin together, once all are connected."""
    callers = [pair.rank for pair in pairs]
    for pair in pairs:
        call = {"address": pair.called.address, "both": pair.both}
        await links.send(links.members[pair.rank], messages.pack("call", call))
    await links.hear_all(PREPARED, callers, _LIMIT, "to connect for measuring", one_too_many)
    begin = messages.pack("begin", {})
    for rank in callers:
        await links.send(links.members[rank], begin)
    found = await links.hear_all(MEASURED, callers, _LIMIT, "to measure a link", one_too_many)
    for pair in pairs:
        schedule.note(pair, ProbeResult.parse(found[pair.rank]))
