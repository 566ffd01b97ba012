"""Keras's door with real ranks, on each backend: the scenarios of keras_*.py, and how jobs end."""

from collections.abc import Callable

import keras_callbacks
import keras_training
import pytest
from keras_backends import of_keras_3, on_each
from scenarios import failures

from shoal.testing import run_ranks

pytestmark = of_keras_3

# Ranks, nodes, servers.
PLACES = {"two nodes": (2, 2, 0), "two nodes of two and a server": (4, 2, 1)}


def environment(backend: str) -> dict[str, str]:
    return {
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        "SHOAL_TIMEOUT": "40",
    }


def run_scenarios(function: Callable[[], dict[str, str]], param: tuple[str, str]) -> list[dict[str, str]]:
    backend, place = param
    ranks, nodes, servers = PLACES[place]
    return run_ranks(function, ranks, nodes=nodes, servers=servers, environment=environment(backend), timeout=500)


@pytest.fixture(scope="module", params=on_each(*PLACES), ids="-".join)
def training(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    return run_scenarios(keras_training.run_all, request.param)


@pytest.fixture(scope="module", params=on_each("two nodes"), ids="-".join)
def callbacks(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    return run_scenarios(keras_callbacks.run_all, request.param)


@pytest.mark.parametrize("name", keras_training.scenario.functions)
def test_training(training: list[dict[str, str]], name: str) -> None:
    assert not failures(training, name), failures(training, name)


@pytest.mark.parametrize("name", keras_callbacks.scenario.functions)
def test_callbacks(callbacks: list[dict[str, str]], name: str) -> None:
    assert not failures(callbacks, name), failures(callbacks, name)
