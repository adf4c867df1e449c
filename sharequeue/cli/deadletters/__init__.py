"""`sharequeue dlq`: the letters in a dead-letter topic, with their causes.

`listing` shows letters, `redriving` sends them back, `discarding` discards them, and `writing` writes those that
wait. `selecting` has the options that select letters, `effects` what redrive and discard print alike.
"""

from __future__ import annotations

import click

from sharequeue.cli.deadletters.discarding import discard
from sharequeue.cli.deadletters.listing import list_letters, show
from sharequeue.cli.deadletters.redriving import redrive
from sharequeue.cli.deadletters.writing import write


@click.group()
def dlq() -> None:
    """Dead letters: records that were rejected, or failed too often."""


for each in (list_letters, show, redrive, discard, write):
    dlq.add_command(each)

COMMANDS = (dlq,)
