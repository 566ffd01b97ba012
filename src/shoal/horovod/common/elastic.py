"""``hvd.elastic``: training that goes on when ranks come and go. It is not there yet, and says so when it is used."""

from typing import NoReturn

from shoal.errors import ShoalError


class NotThereError(ShoalError, AttributeError):
    """Of a name that this module does not have yet: ``hasattr`` is False, ``from ... import`` an ImportError."""


def refuse(name: str) -> NoReturn:
    """For ``__getattr__`` of a module that is to have what Horovod's of that name has."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotThereError(
        f"hvd.elastic.{name} is not there yet: a job has as many ranks as it was started with, and ends when one is lost. Save "
        "checkpoints, and start again from the last one"
    )


def __getattr__(name: str) -> NoReturn:
    refuse(name)
