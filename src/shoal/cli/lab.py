"""``shoal lab``: a command on every host of a lab, and the removal of labs that were left behind."""

import dataclasses
import shutil
import signal
from collections.abc import Callable
from typing import Any

import click

from shoal.errors import ConfigurationError
from shoal.processes import for_terminal
from shoal.testing.lab import Lab, LinkShape, clean, parse_rate, parse_size
from shoal.testing.lab.commands import find_tool, require_root
from shoal.testing.lab.everywhere import run_everywhere
from shoal.testing.lab.lab import MTU
from shoal.testing.lab.links import MAX_HOSTS


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """An option's callback: what one of the lab's own functions reads in its value, or in each of its values."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            return tuple(map(parse, value)) if isinstance(value, tuple) else value and parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None

    return callback


def _parse_slow(text: str) -> tuple[int, float]:
    host, separator, rate = text.partition("=")
    if not separator or not host.isdecimal():
        raise ValueError(f"{text!r} is not HOST=RATE, for example 2=200mbit")
    return int(host), parse_rate(rate)


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option("--hosts", type=click.IntRange(1, MAX_HOSTS), help="Hosts to make.")
@click.option(
    "--rate", callback=_parsed(parse_rate), help="Speed of every link, each way, as 400mbit. Default: no limit."
)
@click.option("--receive-rate", callback=_parsed(parse_rate), help="Speed toward the hosts, where it differs.")
@click.option(
    "--queue", callback=_parsed(parse_size), default="4mb", show_default=True, help="Bytes each end of a link holds."
)
@click.option("--send-queue", callback=_parsed(parse_size), help="Bytes the host's end holds, where it differs.")
@click.option(
    "--burst",
    callback=_parsed(parse_size),
    default="128kb",
    show_default=True,
    help="Bytes that an idle link lets through at once.",
)
@click.option("--congestion-control", metavar="NAME", help="TCP's: reno, bbr ... Default: the machine's.")
@click.option(
    "--slow-start-after-idle/--no-slow-start-after-idle", default=True, help="TCP's setting of that name. Default: on."
)
@click.option(
    "--slow",
    callback=_parsed(_parse_slow),
    multiple=True,
    metavar="HOST=RATE",
    help="Another speed for one host's link, as 2=200mbit. May be given again.",
)
@click.option("--mtu", type=int, default=MTU, show_default=True, help="Bytes of an IP packet.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def lab(
    context: click.Context,
    hosts: int | None,
    rate: float | None,
    receive_rate: float | None,
    queue: int,
    send_queue: int | None,
    burst: int,
    congestion_control: str | None,
    slow_start_after_idle: bool,
    slow: tuple[tuple[int, float], ...],
    mtu: int,
    command: tuple[str, ...],
) -> None:
    """Runs COMMAND on every host of a lab: several hosts on this machine, with links of the speed you ask for.

    The command finds LAB_HOST (its host's index), LAB_HOSTS (how many), LAB_ADDRESS and LAB_ADDRESSES (all, with
    commas) in its environment. When it fails on one host, all are stopped. Needs root.

    \b
    shoal lab --hosts 4 --rate 400mbit --slow 2=200mbit -- COMMAND...
    shoal lab clean         removes labs whose process is gone
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would take our children's exit codes
    try:
        if hosts is None and command == ("clean",):
            _clean()
            return
        _check(hosts, command)
        assert hosts is not None
        shape = LinkShape(
            rate,
            receive_rate,
            queue,
            burst,
            congestion_control,
            send_queue,
            slow_start_after_idle=slow_start_after_idle,
        )
        shapes = {host: dataclasses.replace(shape, rate=its_rate, receive_rate=None) for host, its_rate in slow}
        with Lab(hosts, shape, shapes=shapes, mtu=mtu) as made:
            code = run_everywhere(made, command, for_terminal(1), for_terminal(2))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except (ConfigurationError, OSError) as error:
        raise click.ClickException(str(error)) from None
    context.exit(code)


def _check(hosts: int | None, command: tuple[str, ...]) -> None:
    if hosts is None:
        raise click.UsageError("say how many hosts: --hosts 4 (or: shoal lab clean)")
    if not command:
        raise click.UsageError("there is no command to run on the hosts")
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no program {command[0]!r}")


def _clean() -> None:
    require_root()
    names = clean(find_tool("ip"))
    click.echo("\n".join(f"removed {name}" for name in names) or "no lab was left behind")
