"""A rank's side of measuring: it calls whom rank 0 names, round by round, until ``welcome``.

Rank 0 waits only so long for the callers of a round. Then it goes on with the next one, on this network or on another, or
with ``welcome``. So either may come where ``begin`` was due.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from shoal.assembly.control_links import MEASURED, MOST_ROUNDS, PREPARED
from shoal.config.addresses import Address
from shoal.net import messages
from shoal.net.handshake import Client
from shoal.net.messages import Message
from shoal.tuning import probe
from shoal.tuning.probe import NOTHING


class Hear(Protocol):
    """Rank 0's next message, which must be one of these."""

    def __call__(self, *kinds: str) -> Awaitable[Message]: ...


async def follow_calls(
    hear: Hear, tell: Callable[[bytes], Awaitable[None]], client: Callable[[], Client], sources: Sequence[str]
) -> Message:
    """Returns ``welcome``. ``client``: makes one of role MEASURE. ``sources``: to come from where ``call`` does not say."""
    message = await hear("call", "welcome")
    while message.kind == "call":
        message = await _follow(message, hear, tell, client, sources)
    return message


async def _follow(
    call: Message,
    hear: Hear,
    tell: Callable[[bytes], Awaitable[None]],
    client: Callable[[], Client],
    sources: Sequence[str],
) -> Message:
    """One round. What comes after it."""
    number, both = {"round": call.integer("round", 0, MOST_ROUNDS)}, call.flag("both")
    link = await probe.connect(client, Address(*call.address("address")), _sources(call) or sources)
    with contextlib.ExitStack() as stack:
        if link is not None:
            stack.callback(link.close)
        await tell(messages.pack(PREPARED, number))
        message = await hear("begin", "call", "welcome")
        if message.kind != "begin":
            return message
        found = await probe.call(link, both) if link is not None else NOTHING
    await tell(messages.pack(MEASURED, {**number, **found.as_fields()}))
    return await hear("call", "welcome")


def _sources(call: Message) -> list[str]:
    """Where ``call`` says to come from."""
    return [] if call.is_null("source") else [call.text("source")]
