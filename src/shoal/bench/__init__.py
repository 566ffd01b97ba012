"""The benchmark as a library: ``shoal bench`` and the scripts in ``benchmarks/`` stand on it.

    from shoal.bench import LabPlace, LabShape, Plan, print_report, run

    place = LabPlace(LabShape.parse("nodes=8,servers=8,rate=400mbit"))
    try:
        report = run(Plan(sizes=[25_000_000], contestants=["shoal", "gloo"]), place)
    finally:
        place.close()
    print(report.speedup("gloo", 25_000_000), report.bound_ratio("shoal", 25_000_000))
    print_report(report)

How it measures, and what the figures mean, is told in docs/benchmarks.md.

May import errors and the folders from config to testing.
"""

from shoal.bench.bound import allreduce_factor, bound, server_factor
from shoal.bench.conductor import BenchError
from shoal.bench.naming import shown_name, variant_name
from shoal.bench.places import LabPlace, LabShape, LocalPlace, Place
from shoal.bench.plan import Plan, Variant, choose_sizes, parse_limits
from shoal.bench.plot import plot
from shoal.bench.progress import Progress
from shoal.bench.report import Network, Report, Result, Turn
from shoal.bench.run import run, run_at
from shoal.bench.table import notes, print_report, print_table

__all__ = [
    "BenchError",
    "LabPlace",
    "LabShape",
    "LocalPlace",
    "Network",
    "Place",
    "Plan",
    "Progress",
    "Report",
    "Result",
    "Turn",
    "Variant",
    "allreduce_factor",
    "bound",
    "choose_sizes",
    "notes",
    "parse_limits",
    "plot",
    "print_report",
    "print_table",
    "run",
    "run_at",
    "server_factor",
    "shown_name",
    "variant_name",
]
