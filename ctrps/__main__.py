"""``python -m ctrps`` is the command ``ctrps``."""

from ctrps.cli import main

main()
