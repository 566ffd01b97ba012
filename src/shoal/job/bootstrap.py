"""Joining a job: from the settings of one process to a started engine that is connected to all others.

The steps, each in a module of its own: where to meet and with which secret (meeting_point), rank 0's side (rendezvous),
every rank's side (member), its links to the servers (server_links), where a rank listens (listener), and the life after it
(session).
"""

from collections.abc import Mapping
from dataclasses import fields

from shoal import _native
from shoal.assembly.meeting_point import Store, meet
from shoal.assembly.member import Joined, join_alone, join_job
from shoal.config import logs
from shoal.config.settings import Limits, Settings, overrides_of
from shoal.errors import ShoalError
from shoal.job.session import Session
from shoal.net import handshake
from shoal.net.deadlines import DEFAULT, Deadlines
from shoal.net.loop_thread import LoopThread
from shoal.tuning.limits import limits_for

__all__ = ["Session", "join"]


def join(
    settings: Settings,
    limits: Limits | Mapping[str, int],
    store: Store | None = None,
    deadlines: Deadlines = DEFAULT,
) -> Session:
    """Brings this rank and all others together; returns when every rank is connected.

    ``limits``: those that are not to be found by measuring, by name; a ``Limits`` leaves nothing to find.

    ``store``: what the launcher's ranks share (``set`` and a waiting ``get``), for the meeting place and the secret.
    Raises ConfigurationError, AuthenticationError, PeerLost, Timeout; what is wrong on one rank is raised on all.
    """
    logs.configure(settings.log)
    try:
        return _start(settings, limits, store, deadlines)
    except ShoalError as error:
        # Where it came up among our own tasks helps nobody: the message says what to do.
        raise error.with_traceback(None) from None


def _start(
    settings: Settings, limits: Limits | Mapping[str, int], store: Store | None, deadlines: Deadlines
) -> Session:
    link_thread = LoopThread("shoal-links")
    try:
        joined = link_thread.run(_join(settings, limits, store, deadlines))
        try:
            return Session(joined, settings, link_thread, deadlines)
        except BaseException:
            link_thread.run(joined.close())
            raise
    except BaseException:
        link_thread.stop()
        raise


async def _join(
    settings: Settings, limits: Limits | Mapping[str, int], store: Store | None, deadlines: Deadlines
) -> Joined:
    overrides = overrides_of(limits)
    limits_for(None, 1, overrides)  # what cannot work is refused before others are met
    if settings.size == 1:
        return join_alone(settings, overrides)
    return await join_job(settings, overrides, _shared(settings, limits), meet(settings, store), deadlines)


def _shared(settings: Settings, limits: Limits | Mapping[str, int]) -> dict[str, str]:
    """What must be equal on every rank, under the names that users know."""
    overrides = overrides_of(limits)
    limit_texts = {f"limit '{entry.name}'": str(overrides.get(entry.name, "unset")) for entry in fields(Limits)}
    versions = {"the version of Shoal": _native.__version__, "the protocol's version": str(handshake.VERSION)}
    return {**settings.shared(), **limit_texts, **versions}
