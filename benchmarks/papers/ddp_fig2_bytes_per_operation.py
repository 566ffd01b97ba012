"""Fig. 2 of the paper on PyTorch's DistributedDataParallel: bytes per operation.

The paper all-reduces 60 M float32 parameters, cut into operations of so many parameters each, which are all submitted and
then all waited for; the larger they are, the less time it takes. Here the same, a quarter of the parameters so that they fit
this machine, for Shoal and gloo by turns in one run: on loopback, where an operation's own cost shows, and in a lab, where
links do.

    python benchmarks/papers/ddp_fig2_bytes_per_operation.py [--quick] [--only loopback|lab]
        root, for the lab; 5 minutes; results in benchmarks/results (.txt, .json, .png)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from collections.abc import Callable, Mapping
from typing import Any

import replay
from replay import Pieces, Way
from results import results_of

from shoal.bench import Report
from shoal.bench.contestants import Buffer, Contestant, FloatArray
from shoal.bench.sizes import show_seconds

ROUNDS, QUICK_ROUNDS = 7, 3
PARAMETERS = 15_000_000
OPERATIONS = (10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000)
QUICK_PARAMETERS, QUICK_OPERATIONS = 1_500_000, (10_000, 100_000, 1_000_000)
CASES = {
    "loopback": ("local n=4,servers=2", OPERATIONS),
    # Each turn takes a second or more there.
    "lab": ("lab nodes=4,servers=4,rate=400mbit", (10_000, 50_000, 200_000, 1_000_000, 10_000_000)),
}
HEADING = "DDP's Fig. 2: bytes per operation"
NAMES = {"shoal": "Shoal", "gloo": "gloo"}


def ways(joined: Contestant, library: str, arguments: Mapping[str, Any]) -> Mapping[str, Contestant]:
    submit = replay.submit_together(library)

    def cut(each: int) -> Callable[[FloatArray], Buffer]:
        def make(content: FloatArray) -> Buffer:
            tensors = replay.cut(content, each)
            return Pieces(content, lambda: submit(tensors))

        return make

    return {_way(library, each): Way(joined, cut(each)) for each in arguments["operations"]}


def _way(library: str, each: int) -> str:
    return f"{library} {each}"


def _parameters(way: str) -> int:
    return int(way.split()[1])


def show(report: Report) -> list[str]:
    size = report.sizes[0]
    operations = [_parameters(way) for way in report.contestants if way.startswith("shoal ")]
    lines = [f"{report.title}, {size / 1e6:.0f} MB", ""]
    for library in NAMES:
        bound = report.network.bound(library, size)
        if bound is not None:
            lines += [f"{NAMES[library]} cannot take less than {show_seconds(bound)}", ""]
    lines += [
        f"{'parameters':>10}  {'operations':>10}  {'Shoal':>8}  {'gloo':>8}  {'Shoal is':>14}  {'of all in the largest':>21}",
    ]
    best = report.result(_way("shoal", operations[-1]), size).seconds
    for each in operations:
        ours, theirs = (report.result(_way(library, each), size).seconds for library in NAMES)
        count = -(-(size // replay.ITEMSIZE) // each)
        lines.append(
            f"{each:>10}  {count:>10}  {show_seconds(ours):>8}  {show_seconds(theirs):>8}  "
            f"{theirs / ours:>5.2f} × as fast  {ours / best:>21.2f}"
        )
    return lines


def draw(reports: list[Report], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(reports), figsize=(5.5 * len(reports), 4), squeeze=False)
    for axes, report in zip(panels[0], reports, strict=True):
        for library, colour in (("shoal", "#33608c"), ("gloo", "#c0562f")):
            points = [
                (_parameters(result.contestant), result)
                for result in report.results
                if result.contestant.startswith(library)
            ]
            across = [each for each, _ in points]
            axes.plot(across, [result.seconds for _, result in points], "o-", color=colour, label=NAMES[library])
            low, high = zip(*(result.quartiles for _, result in points), strict=True)
            axes.fill_between(across, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="parameters in an operation", ylabel="s for all of them")
        axes.set_title(report.title, fontsize=9)
        axes.grid(visible=True, which="both", alpha=0.2)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def run_case(place_text: str, operations: tuple[int, ...], parameters: int, rounds: int) -> list[Report]:
    title = f"{place_text}: {parameters / 1e6:g} M float32 parameters"
    size, arguments = parameters * replay.ITEMSIZE, {"operations": operations}
    return [replay.measure(Path(__file__), place_text, size, rounds, arguments, title)]


def case(name: str) -> Callable[[bool], list[Report]]:
    place_text, operations = CASES[name]
    return lambda quick: run_case(
        place_text,
        QUICK_OPERATIONS if quick else operations,
        QUICK_PARAMETERS if quick else PARAMETERS,
        QUICK_ROUNDS if quick else ROUNDS,
    )


def main() -> None:
    known = replay.run_script(Path(__file__), HEADING, {name: case(name) for name in CASES}, show)
    if known:
        draw(known, results_of(__file__).with_suffix(".png"))


if __name__ == "__main__":
    if sys.argv[1:2] == [replay.RANK_OPTION]:
        replay.take_part(sys.argv[2], ways)
    else:
        main()
