"""The exceptions of Horovod, by the names under which scripts catch them, with Shoal's messages."""

from shoal.errors import ShoalError


class HorovodInternalError(ShoalError):
    """An operation has failed. The message names the rank, its host and the operation; the cause is Shoal's own error.

    A RuntimeError, as it is Horovod's, and a ``shoal.ShoalError``.
    """


class InvalidCallError(HorovodInternalError, ValueError):
    """A call that Horovod answers with a ValueError in some functions, and with a HorovodInternalError in others."""


class UnsupportedTensorError(TypeError, ValueError):
    """What is no tensor, or one that cannot be communicated. To Horovod that is a ValueError, to Shoal a TypeError."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of the job have changed. Never raised here: jobs have a fixed number of ranks.

    ``skip_sync``: whether the state of the ranks need not be exchanged.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is not of the version that Horovod was built with. Never raised here: nothing is built for a version."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} {version} is here, but {installed_version} was when this was installed")
        self.name = name
        self.version = version
        self.installed_version = installed_version
