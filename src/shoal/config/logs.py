"""Where Shoal's log goes, in ranks and servers: to the logger "shoal", as the application has set it up, or SHOAL_LOG."""

import logging

_log = logging.getLogger("shoal")


def configure(level: str | None) -> None:
    """SHOAL_LOG sets the level, and where the application has not said where logs go, they go to standard error.

    ``level``: None where it is not set: everything stays as it is.
    """
    if level is None:
        return
    _log.setLevel(level)
    if not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("shoal: %(levelname)s: %(message)s"))
        _log.addHandler(handler)
