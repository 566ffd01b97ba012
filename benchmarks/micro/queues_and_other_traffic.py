"""Any network: 8 nodes and 8 servers at 400 Mbit/s with deep and shallow queues, with bbr and with reno as the hosts' congestion
control, alone and beside a bulk flow of somebody else on every link, always with the same defaults.

Targets: alone, with queues of 4 MB and of 256 KB, 25 MB in at most 1.04 × the bound and 100 MB in at most 1.02; with queues of
64 KB at most 1.25 × M/B and never slower than gloo. Beside a bulk flow at least 0.9 of half the link for us, and at least 0.4
of it left to the other: in the lab's own queues of 4 MB, and here in 256 KB too.

    sudo python benchmarks/micro/queues_and_other_traffic.py [--quick] [--part 'bbr, 64 KB']

Needs root. Takes 9 minutes on 2 cores.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))


from common import Part, Runs, Script, lined_up, verdict

from shoal.bench import Plan, Report
from shoal.bench.sizes import show_bytes, show_seconds

SHAPE = "nodes=8,servers=8,rate=400mbit"
CONTROLS = ("bbr", "reno")
QUEUES = {"4 MB": "4mb", "256 KB": "256kb", "64 KB": "64kb"}
SIZE, LARGE = 25_000_000, 100_000_000
SHALLOW = "64 KB"
MOST = {SIZE: 1.04, LARGE: 1.02}
MOST_SHALLOW = 1.25
LEAST_OURS, LEAST_THEIRS = 0.45, 0.4
CROWDED_ROUNDS = 21

_BESIDE = "beside"


def parts(quick: bool) -> list[Part]:
    if quick:
        lab = "nodes=2,servers=2,rate=400mbit,queue=256kb"
        return [
            Part("reno, 256 KB", f"{lab},cc=reno", Plan((1_000_000,), 2, ("shoal", "gloo"))),
            Part("beside reno, 256 KB", lab, Plan((4_000_000,), 2, ("shoal",), background="reno")),
        ]
    return [
        *(_alone(control, queue) for control in CONTROLS for queue in QUEUES),
        *(_crowded(control, queue) for queue in QUEUES if queue != SHALLOW for control in CONTROLS),
    ]


def _alone(control: str, queue: str) -> Part:
    sizes = (SIZE,) if queue == SHALLOW else (SIZE, LARGE)
    lab = f"{SHAPE},queue={QUEUES[queue]},cc={control}"
    return Part(f"{control}, {queue}", lab, Plan(sizes, contestants=("shoal", "gloo")))


def _crowded(control: str, queue: str) -> Part:
    """``control``: somebody else's; the hosts have the machine's own."""
    plan = Plan((SIZE,), CROWDED_ROUNDS, ("shoal",), background=control)
    return Part(f"{_BESIDE} {control}, {queue}", f"{SHAPE},queue={QUEUES[queue]}", plan)


def tell(runs: Runs) -> list[str]:
    alone = {name: report for name, report in runs.items() if not name.startswith(_BESIDE)}
    crowded = {name: report for name, report in runs.items() if name.startswith(_BESIDE)}
    lines = ["Time of one all-reduce alone on its links, by the hosts' congestion control and the depth of queues", ""]
    rows = [["", "size", "Shoal", "× bound", "drops", "gloo", "Shoal is"]]
    rows += [_row(name, report, size) for name, report in alone.items() for size in report.sizes]
    lines += [*lined_up(rows), "", "Beside a bulk flow of somebody else on every link: shares of a link", ""]
    rows = [["", "Shoal", "the others", "Shoal's time"]]
    rows += [[name, *(f"{share:.3f}" for share in _shares(report)), _time(report)] for name, report in crowded.items()]
    lines += [*lined_up(rows), ""]
    for name, report in alone.items():
        lines += _verdicts(name, report)
    for name, report in crowded.items():
        ours, theirs = _shares(report)
        words = f"{name}, ours {ours:.3f}, at least {LEAST_OURS}; theirs {theirs:.3f}, at least {LEAST_THEIRS}"
        lines.append(verdict(words, ours >= LEAST_OURS and theirs >= LEAST_THEIRS))
    return lines


def _row(name: str, report: Report, size: int) -> list[str]:
    ours, theirs = (report.result(contestant, size) for contestant in ("shoal", "gloo"))
    return [
        name,
        show_bytes(size),
        show_seconds(ours.seconds),
        f"{report.bound_ratio('shoal', size) or 0.0:.3f}",
        str(ours.drops),
        show_seconds(theirs.seconds),
        f"{report.speedup('gloo', size):.2f} ×",
    ]


def _time(report: Report) -> str:
    return show_seconds(report.result("shoal", SIZE if SIZE in report.sizes else report.sizes[0]).seconds)


def _shares(report: Report) -> tuple[float, float]:
    """Of a link: ours, the burst taken off, and what the others had on average."""
    ratio, theirs = report.bound_ratio("shoal", report.sizes[0]), report.result("shoal", report.sizes[0]).others_mean
    return 1 / (ratio or 1.0), (theirs or 0.0) / report.network.rate


def _verdicts(name: str, report: Report) -> list[str]:
    lines = []
    for size in report.sizes:
        ratio, speedup = report.bound_ratio("shoal", size) or 0.0, report.speedup("gloo", size)
        where = f"{name}, {show_bytes(size)}"
        if name.endswith(SHALLOW):
            whole = report.result("shoal", size).seconds * report.network.rate / size
            lines.append(verdict(f"{where}, {whole:.3f} × M/B, at most {MOST_SHALLOW}", whole <= MOST_SHALLOW))
            lines.append(verdict(f"{where}, {speedup:.2f} times as fast as gloo, at least 1", speedup >= 1))
        elif size in MOST:
            lines.append(verdict(f"{where}, {ratio:.3f} × the bound, at most {MOST[size]}", ratio <= MOST[size]))
    return lines


if __name__ == "__main__":
    Script(Path(__file__), parts, tell).main()
