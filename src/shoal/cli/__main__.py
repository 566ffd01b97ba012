"""``python -m shoal.cli`` is ``shoal``."""

from shoal.cli import main

main(prog_name="shoal")
