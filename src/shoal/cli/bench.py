"""``shoal bench``: how fast averaging is here, beside the rivals and the bound, measured in one run."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from shoal.errors import ConfigurationError, ShoalError

T = TypeVar("T")


@click.group()
def bench() -> None:
    """Measures collective operations beside other libraries, in one run."""


@bench.command()
@click.option(
    "--lab",
    metavar="SHAPE",
    help="In a lab on this machine (root): nodes=8,servers=8,rate=400mbit and, if wanted, queue=256kb, burst=128kb, "
    "cc=reno, slow_start_after_idle=off, slow=HOST:RATE+HOST:RATE.",
)
@click.option(
    "--local", metavar="SHAPE", help="On this machine: n=4,servers=2, each rank a node; n=4,nodes=1, all one node."
)
@click.option("--sizes", metavar="LIST", help="Bytes of float32 per rank, as 4KiB,25MB.  [default: 1KiB to 100MB]")
@click.option("--min-size", metavar="SIZE", help="Leaves out smaller sizes.")
@click.option("--max-size", metavar="SIZE", help="Leaves out larger sizes.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Turns of each that count.")
@click.option(
    "--contestants",
    metavar="LIST",
    help="As shoal,gloo,openmpi,mpich,horovod,nccl, and rivals with settings: 'gloo lazy,gloo wide,openmpi ucx'.  "
    "[default: all there are, without settings]",
)
@click.option("--limits", metavar="LIST", help="For Shoal's ranks: segment=16384,credit=65536 and others.")
@click.option(
    "--set",
    "variables",
    metavar="NAME=VALUE",
    multiple=True,
    help="A variable for Shoal's ranks and the servers started for them.",
)
@click.option(
    "--background",
    type=click.Choice(["reno", "bbr", "cubic"]),
    help="In a lab: beside each measurement a bulk flow of somebody else on every link, in each direction.",
)
@click.option("--patience", type=float, default=600.0, show_default=True, help="Seconds that one turn may take.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Writes the report to this file.")
@click.option(
    "--plot", "plot_file", type=click.Path(path_type=Path), help="Draws it: NAME.png, and beside it NAME.html."
)
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def allreduce(
    lab: str | None,
    local: str | None,
    sizes: str | None,
    min_size: str | None,
    max_size: str | None,
    rounds: int,
    contestants: str | None,
    limits: str | None,
    variables: Sequence[str],
    background: str | None,
    patience: float,
    json_file: Path | None,
    plot_file: Path | None,
    quiet: bool,
) -> None:
    """Sums arrays of float32 over all ranks, in place, with Shoal and with every rival that is there, by turns.

    Where: in a lab (--lab), on loopback (--local), or in the job that shoal run, torchrun or mpirun has started this in:
    then every process is a rank, and SHOAL_SERVERS says which servers there are.
    """
    from shoal import bench as library

    def measure() -> None:
        if lab is not None and local is not None:
            raise ConfigurationError("--lab and --local are two places: take one")
        plan = library.Plan(
            sizes=library.choose_sizes(sizes, min_size, max_size),
            rounds=rounds,
            contestants=tuple(contestants.split(",")) if contestants else (),
            limits=library.parse_limits(limits),
            environment=dict(_variable(text) for text in variables),
            background=background,
            patience=patience,
        )
        progress = library.Progress(sys.stderr, quiet=quiet)
        report = library.run_at(plan, lab, local, progress)
        if report is None:
            return  # another rank has it
        # The files first: whoever reads the table may stop reading.
        if json_file is not None:
            json_file.write_text(report.to_json())
        if plot_file is not None:
            library.plot(report, plot_file)
        library.print_report(report)

    _told(measure)


@bench.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--plot", "plot_file", type=click.Path(path_type=Path), help="Draws it: NAME.png, and beside it NAME.html."
)
def show(file: Path, plot_file: Path | None) -> None:
    """Shows a report that --json has written."""
    from shoal import bench as library

    def tell() -> None:
        try:
            report = library.Report.from_json(file.read_text())
        except ValueError as error:
            raise ConfigurationError(f"{file}: {error}") from None
        library.print_report(report)
        if plot_file is not None:
            library.plot(report, plot_file)

    _told(tell)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(f"--set {text!r} is not of the form NAME=VALUE")
    return name, value


def _told(do: Callable[[], T]) -> T:
    try:
        return do()
    except ShoalError as error:
        raise click.ClickException(f"shoal bench: {error}") from None
