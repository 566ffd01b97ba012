"""A training step of four ranks on four nodes with two servers, one of them slow: its timeline, as a figure.

Runs a real job on this machine (`shoal run -n 4 --nodes 4 --servers 2`) with SHOAL_TRACE, and draws its last step from
the one file that all ranks have left: when each rank had its gradients, how long it waited for the others to call each
operation, for whom, and how long the operation took then. Rank 2 sleeps in its backward pass. Times are this machine's
and say nothing about speed; docs/timeline.md says how to read the picture.

    python benchmarks/training/timeline.py [docs/figures/timeline.svg]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import time

import timeline_figure
from timeline_figure import Event

RANKS, SERVERS, STEPS, LAYERS, WIDTH = 4, 2, 4, 6, 512
SLOW_RANK, SLOW_LAYER, SLEEP = 2, 3, 0.15

WAIT, TRANSFER = "#f0b75e", "#33608c"


def train() -> None:
    """One rank: a few steps of a plain network of 6 MiB of parameters, cut into buffers of 1 MiB."""
    import torch

    import shoal.torch

    shoal.torch.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    linear = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    if shoal.torch.rank() == SLOW_RANK:
        linear[SLOW_LAYER].register_full_backward_hook(lambda *_: time.sleep(SLEEP))
    layers = [part for one in linear for part in (one, torch.nn.Tanh())]
    model = shoal.torch.DistributedDataParallel(torch.nn.Sequential(*layers), fusion_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(64, WIDTH)).square().mean().backward()
        optimizer.step()
    shoal.torch.shutdown()


def last_step(events: list[Event]) -> list[Event]:
    """Those of the last step: from the first gradient of any rank on."""
    many = 2 * LAYERS
    ready = [
        [event["ts"] for event in events if (event["name"], event["pid"]) == ("gradient ready", rank)][-many:]
        for rank in range(RANKS)
    ]
    start = min(times[0] for times in ready)
    return [{**event, "ts": event["ts"] - start} for event in events if event.get("ts", -1) >= start]


def draw(events: list[Event], path: Path) -> None:
    figure, axes = timeline_figure.pyplot().subplots(figsize=(8, 5))
    ticks: dict[float, str] = {}
    row = 0.0
    for rank in range(RANKS):
        own = [event for event in events if event["pid"] == rank]
        gradients = [event["ts"] / 1000 for event in own if event["name"] == "gradient ready"]
        axes.plot(gradients, [row] * len(gradients), "|", color="black", markersize=8)
        ticks[row] = f"rank {rank}: gradients"
        buffers = sorted(
            (event for event in own if event.get("cat") == "operation" and ".buffer" in event["name"]),
            key=lambda event: event["ts"],
        )
        for number, whole in enumerate(buffers):
            row += 1
            ticks[row] = f"buffer {number}"
            parts = [one for one in own if one["tid"] == whole["tid"] and inside(one, whole)]
            for part in parts:
                color = WAIT if part["cat"] == "wait" else TRANSFER
                axes.barh(row, part["dur"] / 1000, left=part["ts"] / 1000, color=color, height=0.8)
                last = part.get("args", {}).get("last to call", "").partition(" (")[0]
                if last and part["dur"] > 30_000:
                    axes.text(part["ts"] / 1000 + 1, row, f"for {last}", va="center", fontsize=6)
        row += 1.6
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("ms since the first gradient of the step, on rank 0's clock")
    axes.set_title(f"One step of {RANKS} nodes and {SERVERS} servers; rank {SLOW_RANK} is slow", fontsize=10)
    from matplotlib.patches import Patch

    shown = [
        Patch(color=WAIT, label="NEGOTIATE_ALLREDUCE: not all ranks have called it"),
        Patch(color=TRANSFER, label="ALLREDUCE"),
    ]
    axes.legend(handles=shown, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, -0.28), ncols=2, frameon=False)
    timeline_figure.save(figure, path)


def inside(part: Event, whole: Event) -> bool:
    """Whether a bar is one of the two below another."""
    begin, end = whole["ts"], whole["ts"] + whole["dur"]
    return part.get("cat") in ("wait", "transfer") and begin <= part["ts"] and part["ts"] + part["dur"] <= end + 0.001


def main(path: Path) -> None:
    events, metadata = timeline_figure.recorded(__file__, RANKS, SERVERS)
    draw(last_step(events), path)
    for name, waited in metadata["waited for"].items():
        print(
            f"{name} was last {waited['operations']} times: {waited['seconds that the others waited, added up']:.3f} s"
        )


if __name__ == "__main__":
    timeline_figure.main(__doc__, "docs/figures/timeline.svg", train, main)
