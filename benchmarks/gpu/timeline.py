"""What a trace of PyTorch's profiler says of training steps: when kernels ran and gradients were copied, and how that
lies to the backward pass. Pure functions of the trace's events.

The host has marked forward, backward and optimizer. A kernel belongs to the mark in which it was launched, by
whichever thread. The backward pass is, on the device, from its first kernel to its last. Gradients' copies are those
between the beginning of that and the optimizer's first kernel, which comes after all of them.
"""

import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Span = tuple[float, float]  # microseconds

PHASES = ("forward", "backward", "optimizer")
_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass
class Step:
    """``host``: by phase. ``kernels``: by phase, in the order of their begin. ``out``, ``back``: gradients' copies."""

    host: dict[str, Span]
    kernels: dict[str, list[Span]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    out: list[Span] = field(default_factory=list)
    back: list[Span] = field(default_factory=list)

    @property
    def backward(self) -> Span | None:
        """On the device; None where the trace has no kernels of it."""
        kernels = self.kernels["backward"]
        return (kernels[0][0], max(end for _, end in kernels)) if kernels else None

    @property
    def optimizer(self) -> float | None:
        """When its first kernel began."""
        return self.kernels["optimizer"][0][0] if self.kernels["optimizer"] else None

    @property
    def gap(self) -> float | None:
        """From the last kernel of the backward pass to the first of the optimizer's."""
        return None if self.backward is None or self.optimizer is None else self.optimizer - self.backward[1]

    def inside(self, copies: Sequence[Span]) -> float | None:
        """The share of these copies' time that lies in the backward pass; None where there are none."""
        total = sum(end - begin for begin, end in copies)
        if self.backward is None or total == 0:
            return None
        first, last = self.backward
        return sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in copies) / total


def steps_of(events: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Of a trace in Chrome's format, its "traceEvents"."""
    whole = [event for event in events if event.get("ph") == "X"]
    marks = {phase: sorted(map(_span, _of(whole, "user_annotation", phase))) for phase in PHASES}
    count = min(map(len, marks.values()))
    steps = [Step({phase: marks[phase][index] for phase in PHASES}) for index in range(count)]
    launched = {
        event["args"]["correlation"]: float(event["ts"])
        for event in whole
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    begins = [step.host["forward"][0] for step in steps]
    for event in sorted(whole, key=lambda event: float(event["ts"])):
        if event.get("cat") == "kernel":
            at = launched.get(event.get("args", {}).get("correlation"))
            index = -1 if at is None else bisect_right(begins, at) - 1
            if at is None or index < 0:
                continue
            for phase, (begin, end) in steps[index].host.items():
                if begin <= at <= end:
                    steps[index].kernels[phase].append(_span(event))
    copies = sorted(
        (event for event in whole if event.get("cat") == "gpu_memcpy"), key=lambda event: float(event["ts"])
    )
    for step in steps:
        if step.backward is not None and step.optimizer is not None:
            between = [event for event in copies if step.backward[0] <= float(event["ts"]) < step.optimizer]
            step.out = [_span(event) for event in between if "DtoH" in event["name"]]
            step.back = [_span(event) for event in between if "HtoD" in event["name"]]
    return steps


def _of(events: Sequence[Mapping[str, Any]], category: str, name: str) -> list[Mapping[str, Any]]:
    return [event for event in events if event.get("cat") == category and event["name"] == name]


def _span(event: Mapping[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0.0))


def figures(steps: Sequence[Step]) -> dict[str, float | None]:
    """Medians over the steps: shares, and times in milliseconds. None for what the trace does not have."""

    def middle(values: Sequence[float | None]) -> float | None:
        seen = [value for value in values if value is not None]
        return statistics.median(seen) if seen else None

    def milliseconds(spans: Sequence[Span]) -> float | None:
        return sum(end - begin for begin, end in spans) / 1000 if spans else None

    return {
        "copies inside": middle([step.inside([*step.out, *step.back]) for step in steps]),
        "out inside": middle([step.inside(step.out) for step in steps]),
        "back inside": middle([step.inside(step.back) for step in steps]),
        "out, ms": middle([milliseconds(step.out) for step in steps]),
        "back, ms": middle([milliseconds(step.back) for step in steps]),
        "backward, ms": middle([milliseconds([step.backward] if step.backward else []) for step in steps]),
        "gap, ms": middle([None if step.gap is None else step.gap / 1000 for step in steps]),
    }


def merged(spans: Sequence[Span], apart: float = 5.0) -> list[Span]:
    """Spans that are less than so many microseconds apart count as one: a figure shows no more."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] < apart:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def rows(step: Step) -> dict[str, list[Span]]:
    """What a figure of one step shows, in milliseconds since its begin: by row."""
    begin = step.host["forward"][0]
    found = {f"host: {phase}": [span] for phase, span in step.host.items()}
    found |= {f"GPU: {phase}": merged(spans) for phase, spans in step.kernels.items()}
    found |= {"copies out": merged(step.out), "copies back": merged(step.back)}
    return {name: [((a - begin) / 1000, (b - begin) / 1000) for a, b in spans] for name, spans in found.items()}


def draw(panels: Mapping[str, Mapping[str, Sequence[Span]]], title: str, path: Path) -> bool:
    """One panel for each, of ``rows``. False where there is no matplotlib: the rows are in results.json."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(panels), 1, figsize=(9, 2.4 * len(panels)), squeeze=False, sharex=True)
    for axis, (name, panel) in zip(axes[:, 0], panels.items(), strict=True):
        for row, (label, spans) in enumerate(panel.items()):
            colour = "#999999" if label.startswith("host") else "#33608c" if label.startswith("GPU") else "#c46a2b"
            axis.broken_barh([(begin, end - begin) for begin, end in spans], (row - 0.4, 0.8), color=colour)
        axis.set_yticks(range(len(panel)), list(panel))
        axis.invert_yaxis()
        axis.tick_params(labelsize=7)
        axis.set_title(name, fontsize=9)
    axes[-1, 0].set_xlabel("ms since the step's begin")
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    return True
