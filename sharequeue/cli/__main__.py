"""`python -m sharequeue.cli`: the same command, if the script is not on PATH."""

from sharequeue.cli import main

main()
