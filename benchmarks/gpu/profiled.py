"""A training step under PyTorch's profiler: which share of the copies' time lies inside the backward pass, how long
the GPU waits before the optimizer, and a figure.

    python benchmarks/gpu/profiled.py [--model NAME]

As in steps.py one rank has the GPU and another one replays. Copies back cannot begin before the network is done:
where the network takes longer than the backward pass they lie behind it, whatever Shoal does.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import argparse
import gzip
import json
from typing import Any

import models
import stage
import timeline
from common import verdict
from step_teams import HOST, SHOWN, STREAM, open_teams, task_of
from training_ranks import ALONE
from training_teams import Teams

from shoal.bench.conductor import BenchError

TEAMS = (STREAM, HOST, ALONE)
FIRST_STEPS, STEPS = 5, 3
WANTED = 0.9
FIGURE = "timeline.png"


def measure(teams: Teams, name: str, model: str) -> list[timeline.Step]:
    """Raises BenchError."""
    trace = stage.work_folder() / f"{model}-{name.replace(' ', '-')}.json"
    teams.start(name, task_of(model))
    teams.ask(name, {"do": "steps", "count": 1 if stage.rehearses() else FIRST_STEPS})
    teams.ask(name, {"do": "profile", "count": STEPS, "trace": str(trace)})
    data = trace.read_bytes()
    events = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]
    kinds: dict[str, int] = {}
    for event in events:
        kinds[str(event.get("cat"))] = kinds.get(str(event.get("cat")), 0) + 1
    print(f"{model}, {name}: {len(data)} bytes, {kinds}", flush=True)
    return timeline.steps_of(events)


def tell(found: dict[str, float | None]) -> str:
    def share(name: str) -> str:
        value = found[name]
        return "-" if value is None else f"{100 * value:.0f} %"

    def ms(name: str) -> str:
        value = found[name]
        return "-" if value is None else f"{value:.2f} ms"

    return (
        f"of the copies' time {share('copies inside')} inside the backward pass (out {share('out inside')} of "
        f"{ms('out, ms')}, back {share('back inside')} of {ms('back, ms')}); backward {ms('backward, ms')}, then "
        f"{ms('gap, ms')} to the optimizer"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", choices=models.MODELS, action="append")
    given = parser.parse_args()
    record = stage.Record()
    panels: dict[str, Any] = {}
    status = 0
    with open_teams(2, 1) as teams:
        for model in given.model or models.MODELS:
            for name in TEAMS:
                try:
                    steps = measure(teams, name, model)
                except (BenchError, OSError, ValueError, KeyError) as error:
                    status = 1
                    print(error)
                    record.say(f"{model}, {SHOWN[name]}: FAILED: {str(error).strip().splitlines()[-1]}")
                    continue
                found = timeline.figures(steps)
                shown = timeline.rows(steps[-1])
                record.keep(f"{model}, {name}", {"figures": found, "last step": shown})
                panels[f"{model}, {SHOWN[name]}"] = shown
                if found["backward, ms"] is None:
                    record.say(
                        f"{model}, {SHOWN[name]}: {len(steps)} steps, and no kernels in the trace: there is no GPU"
                    )
                    status = status if stage.rehearses() else 1
                    continue
                record.say(f"{model}, {SHOWN[name]}: {tell(found)}")
                if name == STREAM and found["copies inside"] is not None:
                    text = f"{model}: at least {WANTED:.0%} of the copies' time inside the backward pass"
                    record.say(verdict(text, found["copies inside"] >= WANTED))
    title = "A step of rank 0" + (", REHEARSAL without a GPU" if stage.rehearses() else "")
    if not panels or not timeline.draw(panels, title, stage.work_folder() / FIGURE):
        record.say("no figure: no matplotlib here; its data is in results.json")
    return status


if __name__ == "__main__":
    sys.exit(main())
