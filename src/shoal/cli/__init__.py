"""The command line: ``shoal run``, ``server``, ``bench``, ``lab``. A file a command; what they do lies in the package.

May import errors and every other folder.
"""

import click

from shoal.cli.bench import bench
from shoal.cli.lab import lab
from shoal.cli.run import run
from shoal.cli.server import server


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shoal", prog_name="shoal")
def main() -> None:
    """Shoal averages gradients between the machines of a training job."""


main.add_command(bench)
main.add_command(lab)
main.add_command(run)
main.add_command(server)
