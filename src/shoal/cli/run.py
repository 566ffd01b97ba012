"""``shoal run``: a whole job on this machine."""

import asyncio
import os
import signal

import click

from shoal.processes import JobDescription, LocalJob, for_terminal, program_of

# Words of other launchers for what is said otherwise here.
_TORCHRUN = ("--nproc-per-node", "--nproc_per_node", "--nnodes", "--standalone", "--node-rank", "--rdzv", "--master")
_HOSTS = ("-H", "--host", "--hostfile", "--machinefile")


class _Command(click.Command):
    """Answers the options of other launchers, which people type out of habit."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            answer = _answer(error.option_name)
            if answer is None:
                raise
            raise click.UsageError(answer, context) from None


def _answer(option: str) -> str | None:
    if option.startswith(_TORCHRUN):
        return f"{option} is torchrun's: here -n is the number of all ranks, all on this machine, and --nodes cuts them into nodes"
    if option.startswith(_HOSTS):
        return (
            f"{option}: shoal run starts ranks on this machine alone. On several machines start them with torchrun, srun or "
            "mpirun, without shoal run"
        )
    return None


@click.command(cls=_Command, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option("-n", "-np", "--ranks", type=click.IntRange(min=1), required=True, help="Ranks to start.")
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
@click.option("-m", "--module", is_flag=True, help="PROGRAM is the name of a module, as for python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context, ranks: int, nodes: int, servers: int, module: bool, program: str, arguments: tuple[str, ...]
) -> None:
    """Runs PROGRAM with its ARGUMENTS as a job on this machine.

    A Python script (train.py) is run by the Python that runs shoal; everything else is run as written: python -u train.py,
    python3.12 -m package, env LR=0.1 ./train, bash train.sh.

    Starts servers and ranks, prefixes their output with the rank, passes signals on (a second Ctrl-C kills), stops
    everything when one fails and exits with the first failure's code.
    """
    if servers and os.environ.get("SHOAL_SERVERS"):
        raise click.UsageError(
            "SHOAL_SERVERS is set, and --servers would start others: unset it or leave out --servers"
        )
    try:
        started = program_of(program, arguments, module=module)
        description = JobDescription(started, ranks, nodes, servers)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would take our children's exit codes
    job = LocalJob(description, os.environ, for_terminal(1), for_terminal(2))
    context.exit(asyncio.run(job.run()))
