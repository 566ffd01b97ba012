"""TensorFlow's door with real ranks: the scenarios of tensorflow_*.py, and how jobs end."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_collectives
from scenarios import failures

import shoal.tensorflow as shoal
from shoal.testing import Cluster, run_ranks
from shoal.tensorflow import library

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
