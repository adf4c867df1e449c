"""`sharequeue state show` and `sharequeue audit`: records in flight with their holders, and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
import sqlalchemy as sa

from sharequeue.cli.options import GroupsNamed, Moment, groups_option, parse_topics, settings_options
from sharequeue.cli.output import Output, answers, moment, nested, number, row_of, text
from sharequeue.database import Database
from sharequeue.reports.drawing import divided, window_text
from sharequeue.reports.read import Window, read_windows
from sharequeue.state import State
from sharequeue.words.offsets import OffsetSet
from sharequeue.words.settings import Settings

_CELLS = 80
_LOOKS = {
    "available": (".", "yellow"),
    "acquired": ("A", "blue"),
    "acknowledged": ("+", "green"),
    "archiving": ("!", "magenta"),
    "archived": ("x", "red"),
}
"""The letter and the colour of each state in a strip."""
_RUN = "dagster-run-"
"""The prefix of the client id of a member that is a Dagster run."""
ACTS = (
    *("add_acl", "allow_everyone_if_no_acl_found", "alter_group_config", "alter_offsets", "create_token"),
    *("delete_group", "delete_offsets", "extend_locks", "force_dead_letter", "force_release", "pause"),
    *("raise_state_epochs", "rebind_cluster", "remove_acl", "remove_deleted_topic"),
    *("replace_pipeline", "resume", "revoke_token", "set_service_configs"),
)
"""The acts in the audit log; `audit` accepts no other name."""
_AUDIT = sa.text(
    "select happened_at, principal, role_name, act, group_id, before, after from sharequeue.audit_trail"
    " where (cardinality(cast(:groups as text[])) = 0 or group_id = any (cast(:groups as text[])))"
    " and (cardinality(cast(:acts as text[])) = 0 or act = any (cast(:acts as text[])))"
    " and happened_at >= coalesce(cast(:since as timestamptz), '-infinity')"
    " order by audit_id desc limit :most"
)


@click.command()
@settings_options
@answers(
    text("GROUP", wide=True),
    text("TOPIC"),
    number("PARTITION"),
    text("STATE"),
    number("RECORDS", wide=True),
    text("OFFSETS", cut=True),
    text("CONSUMER-ID", cut=True, wide=True),
    text("RUN", cut=True),
    moment("SINCE"),
    moment("EXPIRES-AT"),
    text("STUCK", wide=True),
)
@groups_option()
@click.option("--topic", "topics", multiple=True, help="Only this topic, or topic:0,1; may be repeated.")
def show(settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str]) -> None:
    """Show records in flight as a strip, with their holders since when; and stuck records, with the reason.

    Each group has its own table.
    RUN is the Dagster run that holds them, or the client id of another member; `-` once the member is gone.
    """
    wanted = parse_topics(topics)
    everything: list[dict[str, Any]] = []
    with Database.open(settings) as database:
        now = State(database).now()
        for group in named.of(database):
            rows: list[dict[str, Any]] = []
            for window in read_windows(database, group, wanted):
                output.note(f"{group} {window.topic}-{window.partition}, {window_text(window)}")
                output.note(strip(window))
                rows += _rows(group, window)
            rows += _leases(database, group, wanted)
            rows.sort(key=lambda row: (row["topic"], row["partition"]))
            everything += rows
            if output.text:
                _print_group(output, rows, now)
    if not output.text:
        output.rows(everything)


def _print_group(output: Output, rows: list[dict[str, Any]], now: datetime) -> None:
    """Print the records in flight of one group, below its strips."""
    if rows:
        looks = (f"{click.style(letter, fg=colour)} {state}" for state, (letter, colour) in _LOOKS.items())
        output.note("  ".join(looks))
    output.rows(rows, now=now)
    for row in rows:
        if row.get("stuck"):
            at = f"{row['group']} {row['topic']}-{row['partition']}"
            output.note(f"STUCK {at} {row['offsets']}: {row['stuck']}")


def strip(window: Window) -> str:
    """Return the in-flight window from left to right by offset; a cell shows the state of most of its offsets."""
    cells = []
    for counts in divided(window, _CELLS):
        state = max(counts, key=lambda name: counts[name]) if counts else None
        letter, colour = _LOOKS[state] if state else (" ", "white")
        cells.append(click.style(letter, fg=colour))
    return "".join(cells)


def _rows(group: str, window: Window) -> list[dict[str, Any]]:
    """Return the offsets in flight without a lease, one row for each state."""
    name = {"group": group, "topic": window.topic, "partition": window.partition}
    return [
        {**name, "state": state, "records": offsets.count, "offsets": listed(offsets)}
        for state, offsets in window.states.items()
        if state != "acquired"
    ]


def _leases(
    database: Database, group: str, wanted: dict[str, tuple[int, ...] | None]
) -> list[dict[str, Any]]:
    return [
        row_of(
            each,
            group=group,
            state="acquired",
            offsets=listed(each.offsets),
            consumer_id=each.member_id,
            run=(each.client_id or "").removeprefix(_RUN) or None,
            since=each.acquired_at,
            stuck=each.stuck_reason,
        )
        for each in State(database).figures.leases(group)
        if not wanted
        or (each.topic in wanted and each.partition in (wanted[each.topic] or (each.partition,)))
    ]


def listed(offsets: OffsetSet) -> str:
    """Return offsets in the form of the command line: `5,7-9`."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in offsets.runs())


@click.command()
@settings_options
@answers(
    moment("AT"),
    text("PRINCIPAL", cut=True),
    text("ROLE", wide=True),
    text("ACT", cut=True),
    text("GROUP"),
    nested("BEFORE", cut=True),
    nested("AFTER", cut=True),
)
@groups_option(default_all=True)
@click.option("--act", "acts", multiple=True, type=click.Choice(ACTS), help="Only this act; may be repeated.")
@click.option("--since", type=Moment(), help="Only from this time on; UTC without a time zone.")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of entries."
)
def audit(
    settings: Settings,
    output: Output,
    named: GroupsNamed,
    acts: Sequence[str],
    since: datetime | None,
    limit: int,
) -> None:
    """Show the audit log, newest first. It also has deleted groups."""
    with Database.open(settings) as database:
        found = database.rows(
            _AUDIT,
            groups=[] if named.every else named.of(database, missing=True),
            acts=list(acts),
            since=since,
            most=limit,
        )
        now = State(database).now()
    output.rows(
        (
            {
                "at": row["happened_at"],
                "principal": row["principal"],
                "role": row["role_name"],
                "act": row["act"],
                "group": row["group_id"],
                "before": row["before"],
                "after": row["after"],
            }
            for row in found
        ),
        now=now,
    )


COMMANDS = (audit,)
