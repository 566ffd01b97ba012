"""A report as a figure."""

from pathlib import Path

from shoal.bench.report import Report


def plot(report: Report, file: Path) -> None:
    raise NotImplementedError
