"""`sharequeue dlq`: what ended in a dead-letter topic, and why.

The topic is read committed, record by record: offsets count transaction markers, so they are no measure.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click

from sharequeue.cli.output import home_option, output_option, print_rows
from sharequeue.deadletter_records import read_dead_letters
from sharequeue.settings import Settings


@click.group()
def dlq() -> None:
    """Dead letters: records that were rejected, or failed too often."""


@dlq.command("list")
@home_option
@output_option
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(0), help="How many; 0 is all of them."
)
@click.argument("topic")
def list_letters(home: Path | None, output: str, limit: int, topic: str) -> None:
    """List the dead letters in TOPIC: where each record came from, how often it was delivered, why it ended
    here.
    """
    letters = read_dead_letters(Settings.load(home), topic)
    rows = [
        {
            "partition": letter.partition,
            "offset": letter.offset,
            "group": letter.group,
            "source_topic": letter.source_topic,
            "source_partition": letter.source_partition,
            "source_offset": letter.source_offset,
            "deliveries": letter.delivery_count,
            "cause": letter.message,
        }
        for letter in islice(letters, limit or None)
    ]
    source = ("SOURCE-TOPIC", "SOURCE-PARTITION", "SOURCE-OFFSET")
    print_rows(("PARTITION", "OFFSET", "GROUP", *source, "DELIVERIES", "CAUSE"), rows, output)


COMMANDS = (dlq,)
