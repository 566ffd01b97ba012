"""PyTorch's own tests of ``torch.distributed``, as they ship in its wheel, made ready for a backend that PyTorch does not know.

To be imported once in a process, with the settings in the environment (``Settings.publish``); importing it makes the class
``Suite``. It is preloaded into a fork server: a test's processes then start in some hundredths of a second.

The suite asks for the name of the backend when it is imported, to skip what a backend cannot do, and again in its tests.
A backend that is to do all that gloo does is called gloo in the first case; in the second, its name is equal to both.
"""

import importlib
import logging
import multiprocessing
import os
import re
import sys
from pathlib import Path
from typing import Any

import on_cpu
from suite_settings import Settings


class BothNames(str):
    """The backend's name, which is equal to gloo's too."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _import_suite(settings: Settings) -> Any:
    os.environ["BACKEND"] = "gloo"
    os.environ["WORLD_SIZE"] = str(settings.world_size)
    if settings.backend != "gloo":
        importlib.import_module("shoal.torch")
    import torch.testing._internal.common_distributed as common

    for feature in ("ddp", "subgroup", "plugin"):
        common.DistTestCases.backend_feature[feature].add(settings.backend)
    if settings.unskip:
        _unskip(re.compile(settings.unskip))
    if settings.gpu_tests:
        on_cpu.lift_gates()
    suite = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    suite.BACKEND = "gloo" if settings.backend == "gloo" else BothNames(settings.backend)
    suite.default_pg_timeout = settings.group_seconds
    common.TIMEOUT_OVERRIDE.clear()  # one limit for all
    return suite


def _unskip(reasons: re.Pattern[str]) -> None:
    import torch.testing._internal.common_utils as common

    skip_if = common.skip_but_pass_in_sandcastle_if
    common.skip_but_pass_in_sandcastle_if = lambda condition, reason: skip_if(
        condition and not reasons.search(reason), reason
    )


def _run_process(environment: dict[str, str], *args: Any, **kwargs: Any) -> None:
    """A process of a test. The fork server has another environment and standard output than who asked for it."""
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(_settings.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
    if _settings.gpu_tests:
        on_cpu.move_to_cpu()
    Suite._run(*args, **kwargs)


_settings = Settings.published()
_suite = _import_suite(_settings)


class Suite(_suite.TestDistBackend, _suite.DistributedTest._DistTestBase):  # type: ignore[misc]
    """All tests; each starts its processes anew."""

    def setUp(self) -> None:
        super().setUp()
        context = multiprocessing.get_context("forkserver")

        def process(target: Any, name: str, args: Any, kwargs: Any) -> Any:
            return context.Process(target=_run_process, name=name, args=(dict(os.environ), *args), kwargs=kwargs)

        self._start_processes(process)

    def tearDown(self) -> None:
        processes = list(self.processes)
        super().tearDown()
        for process in processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join(5)
        Path(self.file_name).unlink(missing_ok=True)
