"""PyTorch's class of process groups, alike in all versions of it: what a version lacks is here, what it calls otherwise too."""

from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import ProcessGroup

from shoal.torch import versions

# PyTorch describes these methods by overloads, which differ between its versions.
_ProcessGroup: Any = ProcessGroup
_Class = TypeVar("_Class", bound=type[Any])


class Base(_ProcessGroup):  # type: ignore[misc]
    """Every version's ProcessGroup. Its own answers would be those of the gloo group inside, where that is said here."""

    if not versions.has("process groups have a timeout"):

        def set_timeout(self, timeout: timedelta) -> None:
            """Later versions hand it to the backend."""

    if not versions.has("process groups are shut down"):

        def shutdown(self) -> None:
            """Later versions end the backend's operations."""

        def abort(self) -> None:
            """Later versions end the backend's operations."""

    @property
    def supports_reconfigure(self) -> bool:
        """Whether the ranks may become others. Gloo's may, since PyTorch 2.14."""
        return False


def with_all_names(kind: _Class) -> _Class:
    """The collectives of a class that have the newest version's names are found by the names that others call them by.

    C++ looks for a method by one name, and what it does not find goes to the gloo group inside without a word.
    """
    for name, before in versions.BEFORE_SINGLE.items():
        # Where both are PyTorch's own, each calls the other for the method that it does not find.
        if before in ("_allgather_base", "_reduce_scatter_base", "alltoall_base") or not versions.has("single"):
            setattr(kind, before, vars(kind)[name])
    return kind
