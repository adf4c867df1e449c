"""`sharequeue dlq write`: write the dead letters of a group that wait for their topic."""

from __future__ import annotations

import click

from sharequeue.cli.options import execute_option, group_option, settings_options
from sharequeue.cli.output import Output, answers, number, text
from sharequeue.database import Database
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.group_names import require_group
from sharequeue.state import State

__all__ = ["write"]


@click.command()
@settings_options
@answers(
    text("TOPIC"),
    number("PARTITION"),
    number("WAITING"),
    text("DEAD-LETTER-TOPIC"),
    text("REMARK"),
    number("WRITTEN"),
    number("RESUMED"),
    number("DROPPED"),
    number("HELD"),
    text("REASON"),
)
@group_option
@execute_option
def write(settings: Settings, output: Output, group: str, execute: bool) -> None:
    """Write the waiting dead letters of a group, each exactly once. Without --execute, only list them."""
    with Database.open(settings) as database:
        require_group(database, group)
        state, configs = State(database), GroupConfigs.load(database, group)
        if not execute:
            waiting = [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "waiting": each.archiving,
                    "dead_letter_topic": configs.dead_letter_topic or None,
                    "remark": each.held_reason,
                }
                for each in state.figures.describe(group)
                if each.archiving
            ]
            output.rows(waiting, ("TOPIC", "PARTITION", "WAITING", "DEAD-LETTER-TOPIC", "REMARK"))
            return
        report = DeadLetterWriter(settings, state, group, configs).write(output.say)
    held = {each.share_partition: each for each in report.held}
    done = {each.share_partition: each for each in report.partitions}
    rows = [
        {
            "topic": at.topic,
            "partition": at.partition,
            "written": done[at].written if at in done else 0,
            "resumed": done[at].resumed if at in done else 0,
            "dropped": done[at].dropped if at in done else 0,
            "held": held[at].records if at in held else 0,
            "reason": held[at].reason if at in held else None,
        }
        for at in sorted({*done, *held})
    ]
    output.rows(rows, ("TOPIC", "PARTITION", "WRITTEN", "RESUMED", "DROPPED", "HELD", "REASON"))
    if held:
        raise click.exceptions.Exit(1)
