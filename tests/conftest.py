"""What all tests need."""

import signal


def pytest_configure() -> None:
    # A shell that starts the tests in the background makes them ignore SIGINT, and every process that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
