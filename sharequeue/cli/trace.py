"""`sharequeue trace`: the life of one record."""

from __future__ import annotations

import click

from sharequeue.cli.options import GroupsNamed, groups_option, settings_options
from sharequeue.cli.output import Output, answers, moment, number, row_of, text
from sharequeue.cli.record_arguments import RecordCommand, record_arguments
from sharequeue.database import Database
from sharequeue.deadletters.tracing import Tracer
from sharequeue.domain.settings import Settings
from sharequeue.state import State


@click.command(cls=RecordCommand)
@settings_options
@answers(
    moment("AT"),
    text("TOPIC", wide=True),
    number("PARTITION", wide=True),
    number("OFFSET"),
    text("GROUP", cut=True),
    text("EVENT"),
    number("DELIVERY"),
    number("LEASE"),
    text("MEMBER", wide=True),
    text("RUN", wide=True),
    text("DETAIL", cut=True),
    text("PLACE", cut=True),
)
@groups_option(default_all=True)
@record_arguments
def trace(
    settings: Settings, output: Output, named: GroupsNamed, topic: str, partition: int, offset: int
) -> None:
    """Show the life of the record at OFFSET of PARTITION of TOPIC, in each group that has read it.

    When it was produced, each lease with its outcome and error, the output, the dead letter with its place, and the
    offset to which a redrive has sent it, with the life of that record below. A `note` says what is not known.
    """
    with Database.open(settings) as database:
        groups = None if named.every else named.of(database)
        events = list(Tracer(settings, database).trace(topic, partition, offset, groups))
        now = State(database).now()
    output.rows(map(row_of, events), now=now)


COMMANDS = (trace,)
