"""What all tests need."""

import signal


def pytest_configure() -> None:
    # A shell that starts the tests in the background makes them ignore SIGINT, and nohup SIGHUP; what they start would ignore
    # them too, but is to be ended by them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
