"""What benchmarks/gpu/timeline.py reads in a profiler's trace: written by hand, in microseconds."""

import runpy
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks/gpu/timeline.py"


@pytest.fixture(scope="module")
def timeline() -> dict[str, Any]:
    return runpy.run_path(str(PROGRAM))


def event(category: str, name: str, begin: float, end: float, correlation: int = 0) -> dict[str, Any]:
    arguments = {"correlation": correlation} if correlation else {}
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin, "args": arguments}


def kernel(launched: float, begin: float, end: float, correlation: int) -> list[dict[str, Any]]:
    launch = event("cuda_runtime", "cudaLaunchKernel", launched, launched + 1, correlation)
    return [launch, event("kernel", "k", begin, end, correlation)]


def step_at(zero: float, first: int) -> list[dict[str, Any]]:
    """The host is 900 µs ahead. Backward: 1000 to 2000. Out: 1200 to 1400. Back: 1900 to 2300. Optimizer: 2300."""
    events = [
        event("user_annotation", "forward", 0, 10),
        event("user_annotation", "backward", 20, 90),
        event("user_annotation", "optimizer", 95, 99),
        *kernel(5, 900, 990, first),
        *kernel(30, 1000, 1500, first + 1),
        *kernel(80, 1500, 2000, first + 2),
        *kernel(96, 2300, 2400, first + 3),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 950, 960),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 1200, 1400),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1900, 2300),
        event("cpu_op", "aten::add", 30, 31),
    ]
    return [{**each, "ts": each["ts"] + zero} for each in events]


def test_copies_lie_inside_the_backward_pass_or_behind_it(timeline: dict[str, Any]) -> None:
    # The second step's host begins before the device has ended the first.
    steps = timeline["steps_of"]([*step_at(3000, 11), *step_at(0, 1)])
    found = timeline["figures"](steps)
    assert len(steps) == 2
    assert steps[0].backward == (1000, 2000)
    assert found["out inside"] == 1.0
    assert found["back inside"] == pytest.approx(0.25)
    assert found["copies inside"] == pytest.approx(0.5)
    assert found["gap, ms"] == pytest.approx(0.3)
    assert found["backward, ms"] == pytest.approx(1.0)
    assert (found["out, ms"], found["back, ms"]) == (pytest.approx(0.2), pytest.approx(0.4))


def test_a_trace_without_a_device_has_no_figures(timeline: dict[str, Any]) -> None:
    steps = timeline["steps_of"]([each for each in step_at(0, 1) if each["cat"] in ("user_annotation", "cpu_op")])
    assert len(steps) == 1
    assert set(timeline["figures"](steps).values()) == {None}


def test_a_figure_shows_spans_that_touch_as_one(timeline: dict[str, Any], tmp_path: Path) -> None:
    (step,) = timeline["steps_of"](step_at(0, 1))
    rows = timeline["rows"](step)
    assert rows["GPU: backward"] == [(1.0, 2.0)]
    assert rows["copies back"] == [(pytest.approx(1.9), pytest.approx(2.3))]
    pytest.importorskip("matplotlib")
    assert timeline["draw"]({"a step": rows}, "by hand", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
