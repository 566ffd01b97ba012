"""``shoal server``: a dedicated server."""

import os

import click

from shoal.assembly.secrets import configured_secrets
from shoal.config import logs
from shoal.config.settings import ServerSettings
from shoal.errors import ShoalError
from shoal.server.front import serve
from shoal.server.listeners import default_host
from shoal.server.memory import default_bound, parse_size, shown_size


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option("--host", help="Address to listen on.  [default: that of SHOAL_INTERFACE, or 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), default=7077, show_default=True, help="Port; 0 is any free one.")
@click.option(
    "--proxies", type=click.IntRange(min=1), help="Threads.  [default: SHOAL_THREADS, or one a core, at most 4]"
)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=lambda _context, _option, text: None if text is None else _size(text),
    help="Memory that this process may take, for all jobs together: 8G, 512M.  [default: half of the machine's]",
)
@click.option("--port-range", type=(int, int), hidden=True, help="First and last of the ports to choose one from.")
@click.option("--ready-fd", type=click.IntRange(min=0), hidden=True, help="Descriptor for a line with host and port.")
def server(
    host: str | None,
    port: int,
    proxies: int | None,
    memory: int | None,
    port_range: tuple[int, int] | None,
    ready_fd: int | None,
) -> None:
    """Averages for any number of jobs, at once or one after another, until SIGTERM or Ctrl-C.

    Who may use it is said by the secret in SHOAL_SECRET or SHOAL_SECRET_FILE (which may hold several, one a line). On
    loopback, without either, it is this user alone. Of the other variables it reads SHOAL_TLS, SHOAL_THREADS, SHOAL_LOG,
    and SHOAL_INTERFACE: where it listens without --host, and of several interfaces beside that.
    """
    bound = memory or default_bound()

    def ready(bound_host: str, bound_port: int) -> None:
        shown = f"[{bound_host}]" if ":" in bound_host else bound_host
        said = "1 proxy" if many == 1 else f"{many} proxies"
        click.echo(f"shoal server: listening on {shown}:{bound_port}, {said}, {shown_size(bound)} of memory")
        if ready_fd is not None:
            with os.fdopen(ready_fd, "w") as launcher:
                launcher.write(f"{bound_host} {bound_port}\n")

    try:
        settings = ServerSettings.from_environment()
        many = proxies or settings.threads or min(4, os.cpu_count() or 1)
        logs.configure(settings.log)
        secrets, encrypts = configured_secrets(settings), settings.encrypts
        serve(
            host or default_host(settings.interfaces),
            port_range or port,
            many,
            secrets,
            ready,
            encrypts=encrypts,
            memory=bound,
            interfaces=settings.interfaces,
        )
    except ShoalError as error:
        raise click.ClickException(f"shoal server: {error}") from None
