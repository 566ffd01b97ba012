"""The command line: ``shoal run``, ``shoal server``. A file a command; what they do lies in the package."""

import click

from shoal.cli.run import run
from shoal.cli.server import server


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shoal", prog_name="shoal")
def main() -> None:
    """Shoal averages gradients between the machines of a training job."""


main.add_command(run)
main.add_command(server)
