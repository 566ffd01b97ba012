"""The gradients that the benchmarks replay are those of the model that they name."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def replay() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS / "lib")
        return runpy.run_path(str(BENCHMARKS / "lib" / "replay.py"))


def test_bert_large_has_398_variables_of_336_million_elements(replay: dict[str, Any]) -> None:
    variables = replay["bert_large"]()
    assert len(variables) == 398
    assert len({variable.name for variable in variables}) == 398
    # 24 layers of 12 W² + 13 W, embeddings of (30522 + 512 + 2 + 2) W, heads of 2 W² + 6 W + 30522 + 2.
    width = 1024
    layers, embeddings = 24 * (12 * width**2 + 13 * width), 31038 * width
    heads = 2 * width**2 + 6 * width + 30524
    assert sum(variable.elements for variable in variables) == layers + embeddings + heads == 336_226_108


def test_scaling_leaves_every_variable_an_element(replay: dict[str, Any]) -> None:
    smaller = replay["scaled"](replay["bert_large"](), 1e6)
    assert len(smaller) == 398
    assert min(variable.elements for variable in smaller) == 1
    assert max(variable.elements for variable in smaller) == 31


def test_the_recorded_backward_pass_has_every_gradient_once_and_ends_with_the_words(replay: dict[str, Any]) -> None:
    gradients = json.loads((BENCHMARKS / "results" / "herring_table1_overlap_trace.json").read_text(encoding="utf-8"))[
        "gradients"
    ]
    recorded = sorted((gradient["name"], gradient["elements"]) for gradient in gradients)
    assert recorded == sorted((variable.name, variable.elements) for variable in replay["bert_large"]())
    parts = [gradient["part"] for gradient in gradients]
    assert parts == sorted(parts)
    assert 0 < parts[0] < parts[-1] <= 1
    assert gradients[-1]["name"] == "embeddings.word"


@pytest.mark.parametrize(("name", "millions"), [("resnet50", 25.557), ("gpt2", 124.4)])
def test_models_of_gpu_runs_are_as_large_as_they_say(
    name: str, millions: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS / "lib")
    monkeypatch.syspath_prepend(BENCHMARKS / "gpu")
    monkeypatch.setattr(sys, "path", list(sys.path))  # the programs there add to it
    models = runpy.run_path(str(BENCHMARKS / "gpu" / "models.py"))
    network = models["make"](name, 1024)
    assert sum(parameter.numel() for parameter in network.parameters()) / 1e6 == pytest.approx(millions, rel=1e-3)
    replayed = models["Replayed"](network)
    replayed().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
