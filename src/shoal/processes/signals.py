"""The signals that a command passes on to the processes that it runs."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
