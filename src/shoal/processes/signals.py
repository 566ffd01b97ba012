"""The signals that a command passes on to the processes that it runs, and those that stop it for a while."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FAREWELL_SECONDS = 0.2


@contextmanager
def passed_on(handle: Callable[[int], None]) -> Iterator[None]:
    """Inside, the running event loop calls ``handle`` with their numbers. For the main thread.

    Not for those that this process was started to ignore, as by nohup: what it runs ignores them too.
    """
    loop = asyncio.get_running_loop()
    heard = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


@contextmanager
def around_stops(before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Inside, when a terminal stops this process (Ctrl-Z): ``before`` a moment ahead of it, ``after`` when it goes on."""
    loop = asyncio.get_running_loop()
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
        yield
        return

    is_near = False

    def stop() -> None:
        nonlocal is_near
        is_near = False
        loop.remove_signal_handler(signal.SIGTSTP)
        # It is the kernel's to decide, which stops nothing that no shell would let go on.
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, soon)
        after()

    def soon() -> None:
        nonlocal is_near
        if is_near:
            return  # a second Ctrl-Z would stop again what has just gone on
        is_near = True
        before()
        loop.call_later(_FAREWELL_SECONDS, stop)

    loop.add_signal_handler(signal.SIGTSTP, soon)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTSTP)
