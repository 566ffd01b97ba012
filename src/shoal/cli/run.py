"""``shoal run``: a whole job, on this machine or on several hosts."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TypeVar

import click

from shoal.cli.others import answer
from shoal.config.settings import peer_timeout, port_range
from shoal.errors import ConfigurationError
from shoal.processes import (
    Host,
    Job,
    JobDescription,
    Program,
    Ssh,
    as_horovod,
    for_terminal,
    parse_host_names,
    parse_hosts,
    program_of,
    read_hostfile,
)

_T = TypeVar("_T")


class _Command(click.Command):
    """Answers the options of other launchers, which people type out of habit."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            known = [option for parameter in self.params for option in parameter.opts]
            said = answer(error.option_name, words, known)
            if said is None:
                raise
            raise click.UsageError(said, context) from None


def _parsed(parse: Callable[[str], _T]) -> Callable[[click.Context, click.Parameter, str | None], _T | None]:
    """An option's callback."""

    def callback(context: click.Context, parameter: click.Parameter, text: str | None) -> _T | None:
        try:
            return None if text is None else parse(text)
        except OSError as error:
            raise click.BadParameter(f"{text}: {error.strerror}", context, parameter) from None
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None

    return callback


@click.command(cls=_Command, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option(
    "-n", "-np", "--num-proc", "--ranks", "ranks", type=click.IntRange(min=1), required=True, help="Ranks to start."
)
@click.option(
    "-H",
    "--hosts",
    metavar="HOST:SLOTS,...",
    callback=_parsed(parse_hosts),
    help="Where, and how many on each; the ranks fill the hosts in order.  [default: this machine]",
)
@click.option(
    "-hostfile",
    "--hostfile",
    metavar="FILE",
    callback=_parsed(read_hostfile),
    help="The same, a line each: HOST slots=SLOTS.",
)
@click.option("-p", "--ssh-port", type=click.IntRange(1, 65535), help="Port of ssh on the other hosts.")
@click.option(
    "-i", "--ssh-identity-file", type=click.Path(exists=True, dir_okay=False), help="File of the private key for ssh."
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Without hosts: cuts the ranks into that many nodes; where uneven, the first get one more.",
)
@click.option(
    "--servers",
    type=click.IntRange(min=0),
    help="Dedicated servers to start. They need at least two nodes.  [default: one on each of --server-hosts]",
)
@click.option(
    "--server-hosts",
    metavar="HOST,...",
    callback=_parsed(parse_host_names),
    help="Where the servers are, by turns. With hosts these are others than the ranks'.",
)
@click.option("-m", "--module", is_flag=True, help="PROGRAM is the name of a module, as for python -m.")
@click.option("--as-horovod", "horovod", is_flag=True, help="In PROGRAM, of Python, import horovod is Shoal.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    ranks: int,
    hosts: list[Host] | None,
    hostfile: list[Host] | None,
    ssh_port: int | None,
    ssh_identity_file: str | None,
    nodes: int,
    servers: int | None,
    server_hosts: list[str] | None,
    module: bool,
    horovod: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Runs PROGRAM with its ARGUMENTS as a job.

    A Python script (train.py) is run by the Python that runs shoal; everything else is run as written: python -u train.py,
    python3.12 -m package, env LR=0.1 ./train, bash train.sh.

    Starts servers and ranks, prefixes their output with the rank, passes signals on (a second Ctrl-C kills), stops
    everything when one fails and exits with the first failure's code.

    Other hosts are reached by ssh, without a password. Folder, program, Python and Shoal are at the same paths there.
    """
    if hosts and hostfile:
        raise click.UsageError("the hosts are in -H or in --hostfile, not in both")
    if (ssh_port or ssh_identity_file) and not (hosts or hostfile):
        raise click.UsageError("-p and -i are for ssh to other hosts: name them with -H or --hostfile")
    servers = len(server_hosts or ()) if servers is None else servers
    if servers and os.environ.get("SHOAL_SERVERS"):
        raise click.UsageError(
            "SHOAL_SERVERS is set, and the servers of this job would be others: unset it or leave out --servers"
        )
    try:
        started = _program(program, arguments, module=module, horovod=horovod)
        description = JobDescription(started, ranks, nodes, servers, hosts or hostfile or (), server_hosts or ())
        ssh = Ssh(ssh_port, ssh_identity_file, peer_timeout(os.environ))
        ports = port_range(os.environ)
    except (ValueError, ConfigurationError) as error:
        raise click.UsageError(str(error)) from None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would take our children's exit codes
    job = Job(description, os.environ, for_terminal(1), for_terminal(2), ssh, ports)
    context.exit(asyncio.run(job.run()))


def _program(word: str, arguments: tuple[str, ...], *, module: bool, horovod: bool) -> Program:
    """Raises ValueError."""
    program = program_of(word, arguments, module=module)
    return as_horovod(program) if horovod else program
