"""What a run of the suite is given, in the environment of all its processes."""

import json
import os
from dataclasses import asdict, dataclass

VARIABLE = "C10D_SUITE"


@dataclass(frozen=True)
class Settings:
    """``unskip``: a regular expression; what PyTorch skips for a reason that it matches is run. ``log``: where the processes
    of tests write. ``group_seconds``: the timeout of process groups."""

    backend: str
    world_size: int
    gpu_tests: bool
    unskip: str
    log: str
    group_seconds: int

    def publish(self) -> None:
        """For the processes that are started from now on."""
        os.environ[VARIABLE] = json.dumps(asdict(self))

    @staticmethod
    def published() -> "Settings":
        return Settings(**json.loads(os.environ[VARIABLE]))
