"""`python -m flexpipe.cli`: the same as the command `flexpipe`."""

from flexpipe.cli.app import main

main()
