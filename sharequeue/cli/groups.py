"""`sharequeue groups`: which share groups there are, and how far each has come.

Columns are those of Kafka's `kafka-share-groups.sh --describe`, ours after them.
"""

from __future__ import annotations

from pathlib import Path

import click
import sqlalchemy as sa

from sharequeue.cli.output import home_option, output_option, print_rows
from sharequeue.database import Database
from sharequeue.errors import GroupIdNotFound
from sharequeue.settings import Settings
from sharequeue.state import State

_LIST = sa.text(
    """
    select g.group_id as "group",
           case when count(m.member_id) > 0 then 'Stable' else 'Empty' end as state,
           count(m.member_id) as members
      from sharequeue.share_groups g
      left join sharequeue.members m using (group_id)
     group by g.group_id
     order by g.group_id
    """
)
_KNOWN = sa.text("select 1 from sharequeue.share_groups where group_id = :group_id")


@click.group()
def groups() -> None:
    """Share groups: list them, describe one."""


@groups.command("list")
@home_option
@output_option
def list_groups(home: Path | None, output: str) -> None:
    """List the share groups with their state and number of members."""
    with Database.open(Settings.load(home)) as database:
        rows = [dict(row) for row in database.rows(_LIST)]
    print_rows(("GROUP", "STATE", "MEMBERS"), rows, output)


@groups.command()
@home_option
@output_option
@click.argument("group")
def describe(home: Path | None, output: str, group: str) -> None:
    """Show GROUP's share-partitions: where each starts, what lags, what is in flight."""
    with Database.open(Settings.load(home)) as database:
        if not database.rows(_KNOWN, group_id=group):
            raise GroupIdNotFound(
                f"There is no share group {group}: `sharequeue groups list` shows those there are."
            )
        partitions = State(database).describe(group)
    rows = [
        {
            "group": each.group_id,
            "topic": each.topic,
            "partition": each.partition,
            "start_offset": each.spso,
            "lag": each.lag,
            "end_offset": each.log_end,
            "acquired": each.acquired,
            "available": each.available,
            "archiving": each.archiving,
            "next_expiry": each.next_expiry,
        }
        for each in partitions
    ]
    ours = ("END-OFFSET", "ACQUIRED", "AVAILABLE", "ARCHIVING", "NEXT-EXPIRY")
    print_rows(("GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG", *ours), rows, output)


COMMANDS = (groups,)
