"""TensorFlow's door with real ranks: the scenarios of tensorflow_*.py, and how jobs end."""

import pytest
import tensorflow_collectives
import tensorflow_order
import tensorflow_places
import tensorflow_training
from scenarios import failures

from shoal.testing import run_ranks

RANKS = 3
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "SHOAL_TIMEOUT": "20"}

# Nodes, servers.
PLACES = {"two nodes and a server": (2, 1), "one machine": (1, 0), "three nodes": (3, 0)}


@pytest.fixture(scope="module", params=PLACES)
def results(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    nodes, servers = PLACES[request.param]
    return run_ranks(
        tensorflow_collectives.run_all, RANKS, nodes=nodes, servers=servers, environment=QUIET, timeout=300
    )


@pytest.mark.parametrize("name", tensorflow_collectives.scenario.functions)
def test_collectives(results: list[dict[str, str]], name: str) -> None:
    assert not failures(results, name), failures(results, name)


# Ranks, nodes, servers.
TRAINING_PLACES = {"four nodes and two servers": (4, 4, 2), "one machine": (4, 1, 0)}


@pytest.fixture(scope="module", params=TRAINING_PLACES)
def training(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    ranks, nodes, servers = TRAINING_PLACES[request.param]
    return run_ranks(tensorflow_training.run_all, ranks, nodes=nodes, servers=servers, environment=QUIET, timeout=400)


@pytest.mark.parametrize("name", tensorflow_training.scenario.functions)
def test_training(training: list[dict[str, str]], name: str) -> None:
    assert not failures(training, name), failures(training, name)


@pytest.fixture(scope="module", params=TRAINING_PLACES)
def places(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    ranks, nodes, servers = TRAINING_PLACES[request.param]
    return run_ranks(tensorflow_places.run_all, ranks, nodes=nodes, servers=servers, environment=QUIET, timeout=400)


@pytest.mark.parametrize("name", tensorflow_places.scenario.functions)
def test_places(places: list[dict[str, str]], name: str) -> None:
    assert not failures(places, name), failures(places, name)


@pytest.fixture(scope="module", params=[1, 2], ids=["one machine", "two nodes"])
def order(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    return run_ranks(tensorflow_order.run_all, 2, nodes=request.param, environment=QUIET, timeout=300)


@pytest.mark.parametrize("name", tensorflow_order.scenario.functions)
def test_order(order: list[dict[str, str]], name: str) -> None:
    assert not failures(order, name), failures(order, name)
