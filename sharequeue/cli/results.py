"""`sharequeue results`: accepted rows that are not in the table or topic of their sink yet."""

from __future__ import annotations

import click

from sharequeue.cli.options import GroupsNamed, execute_option, group_option, groups_option, settings_options
from sharequeue.cli.output import Output, answers, moment, number, row_of, text
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.group_names import require_group
from sharequeue.kafka.topics import Topics
from sharequeue.state import State


@click.group()
def results() -> None:
    """See and resume accepted rows on their way to the table or topic of their sink."""


@results.command("list")
@settings_options
@answers(
    text("GROUP"),
    text("SINK"),
    number("ROWS"),
    moment("OLDEST-AT"),
    text("STATUS"),
    moment("HELD-SINCE"),
    text("REASON"),
)
@groups_option(default_all=True)
def list_results(settings: Settings, output: Output, named: GroupsNamed) -> None:
    """List the sinks with accepted rows that are not in their table or topic yet.

    STATUS is `waiting` if the next round or run writes them, and `held` if the last attempt could not: REASON is why,
    and what to do.
    """
    with Database.open(settings) as database:
        state = State(database)
        found = state.outputs.waiting_results(named.of(database))
        rows = [
            row_of(
                each,
                group=each.group_id,
                status="waiting" if each.held_reason is None else "held",
                reason=each.held_reason,
            )
            for each in found
        ]
        output.rows(rows, now=state.now())


@results.command()
@settings_options
@answers(text("TOPIC"), number("PARTITION"), number("ROWS"), text("PROBLEM"), text("STATUS"))
@group_option
@click.option("--sink", required=True, help="The sink.")
@click.option("--to", required=True, help="The topic of the sink.")
@click.option(
    "--count-as-written", is_flag=True, help="Do not send the rows of the transfer; count them as written."
)
@click.option(
    "--also-unsent",
    is_flag=True,
    help="With --count-as-written: also rows that can be sent, for example because the broker refuses one of them.",
)
@execute_option
def resume(
    settings: Settings,
    output: Output,
    execute: bool,
    group: str,
    sink: str,
    to: str,
    count_as_written: bool,
    also_unsent: bool,
) -> None:
    """Decide about rows that are held because it is not known whether their topic has them.

    The next run sends all of them, so that some may be in the topic twice; with --count-as-written it sends none, so
    that some may be missing there. Rows of source partitions without a PROBLEM are sent as always. If the broker
    refuses one of them for good, --count-as-written --also-unsent gives up what was not sent: STATUS has from where
    on.
    """
    if also_unsent and not count_as_written:
        raise click.UsageError("--also-unsent: give it with --count-as-written")
    # Imported here: other commands do not need Spark.
    from sharequeue.spark.sinks.kafka.resuming import HeldResults

    with Database.open(settings) as database, Topics(settings) as topics:
        require_group(database, group)
        held = HeldResults(settings, State(database), topics, group, sink, to)
        sources = held.sources()
        statuses = dict.fromkeys(sources, output.planned)
        if execute and count_as_written:
            counted = held.count_as_written(also_unsent=also_unsent)
            statuses = {
                each: "counted as written" if (each.topic, each.partition) in counted else "waits"
                for each in sources
            }
        elif execute:
            held.send_again()
            statuses = {
                each: f"the next run sends {'all rows' if each.problem else 'what is missing'}"
                for each in sources
            }
    if also_unsent:
        statuses = {
            each: f"{status}, {each.unsent}" if each.unsent else status for each, status in statuses.items()
        }
    output.rows(row_of(each, status=status) for each, status in statuses.items())


COMMANDS = [results]
