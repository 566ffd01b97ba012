"""``shoal run``: a whole job on this machine."""

import asyncio
import os
import signal
import sys

import click

from shoal.processes import JobDescription, LocalJob, for_terminal


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option("-n", "--ranks", type=click.IntRange(min=1), required=True, help="Ranks to start.")
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Cuts the ranks into that many nodes; where uneven, the first get one more.",
)
@click.option(
    "--servers",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Dedicated servers to start. They need at least two nodes.",
)
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context, ranks: int, nodes: int, servers: int, module: bool, script: str, arguments: tuple[str, ...]
) -> None:
    """Runs SCRIPT with its ARGUMENTS as a job on this machine.

    Starts servers and ranks, prefixes their output with the rank, passes signals on (a second Ctrl-C kills), stops
    everything when one fails and exits with the first failure's code.
    """
    if servers and os.environ.get("SHOAL_SERVERS"):
        raise click.UsageError(
            "SHOAL_SERVERS is set, and --servers would start others: unset it or leave out --servers"
        )
    if not module and not os.path.exists(script):  # noqa: PTH110 (a name from the command line)
        raise click.UsageError(f"there is no file {script!r} (for a module, use -m)")
    command = [sys.executable, *(["-m"] if module else []), script, *arguments]
    try:
        description = JobDescription(command, ranks, nodes, servers)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would take our children's exit codes
    job = LocalJob(description, os.environ, for_terminal(1), for_terminal(2))
    context.exit(asyncio.run(job.run()))
