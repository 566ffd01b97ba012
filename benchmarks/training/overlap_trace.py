"""Averaging overlaps the backward pass: the timeline of one training step, as a figure.

Runs a real job (3 ranks, 1 server, this machine) with SHOAL_TRACE and draws what rank 0 recorded of its last step: when
gradients became ready, and for each fusion buffer when it was submitted, when its first byte was sent, and when its
result was complete. Times are this machine's and say nothing about speed; the order is the point.

    python benchmarks/training/overlap_trace.py [docs/figures/overlap.svg]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import timeline_figure
from timeline_figure import Event

RANKS, SERVERS, STEPS, LAYERS, WIDTH = 3, 1, 4, 12, 512


def train() -> None:
    """One rank: a few steps of a plain network of 12 MiB of parameters, cut into buffers of 1 MiB."""
    import torch

    from shoal.torch import DistributedDataParallel

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), fusion_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(2048, WIDTH)).square().mean().backward()
        optimizer.step()


def last_step(events: list[Event]) -> tuple[list[float], list[dict[str, float]]]:
    """Times of rank 0's gradients, and of each buffer its three moments, in milliseconds since the step's first gradient."""
    own = [event for event in events if event["pid"] == 0]
    gradients = [event["ts"] for event in own if event["name"] == "gradient ready"][-2 * LAYERS :]
    start = gradients[0]
    buffers = []
    for event in own:
        if event.get("cat") == "operation" and ".buffer" in event["name"] and event["ts"] >= start:
            sent = event["ts"] + event["args"].get("ns to first byte sent", event["dur"] * 1000) / 1000
            moments = {"submit": event["ts"], "first byte sent": sent, "complete": event["ts"] + event["dur"]}
            buffers.append({moment: (at - start) / 1000 for moment, at in moments.items()})
    return [(at - start) / 1000 for at in gradients], buffers


def draw(gradients: list[float], buffers: list[dict[str, float]], path: Path) -> None:
    figure, axes = timeline_figure.pyplot().subplots(figsize=(8, 4))
    for row, buffer in enumerate(buffers):
        sent = buffer["first byte sent"]
        axes.barh(row, sent - buffer["submit"], left=buffer["submit"], color="#c9d6e8")
        axes.barh(row, buffer["complete"] - sent, left=sent, color="#33608c")
    axes.plot(gradients, [-1] * len(gradients), "|", color="black", markersize=10)
    axes.axvline(gradients[-1], color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks([-1, *range(len(buffers))], ["gradients", *(f"buffer {row}" for row in range(len(buffers)))])
    axes.set_xlabel("ms since the first gradient of the step (dotted: the last gradient)")
    axes.set_title("One step on rank 0. Light: submitted; dark: from the first byte sent to the result", fontsize=10)
    timeline_figure.save(figure, path)


def main(path: Path) -> None:
    events, _ = timeline_figure.recorded(__file__, RANKS, SERVERS)
    gradients, buffers = last_step(events)
    draw(gradients, buffers, path)
    during = sum(buffer["complete"] < gradients[-1] for buffer in buffers)
    print(f"{RANKS} ranks, {SERVERS} server")
    print(f"{during} of {len(buffers)} buffers were complete before the last gradient was ready")


if __name__ == "__main__":
    timeline_figure.main(__doc__, "docs/figures/overlap.svg", train, main)
