"""`sharequeue audit`: the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click
import sqlalchemy as sa

from sharequeue.cli.options import GroupsNamed, TimeOption, Whole, groups_option, settings_options
from sharequeue.cli.output import Output, answers, moment, nested, text
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.state import State

ACTS = (
    *("add_acl", "adopt", "allow_everyone_if_no_acl_found", "alter_group_config", "alter_offsets"),
    *(
        "create_token",
        "delete_group",
        "delete_offsets",
        "discard_letters",
        "extend_locks",
        "force_dead_letter",
        "force_release",
        "pause",
    ),
    *("raise_state_epochs", "rebind_cluster", "remove_acl", "remove_deleted_topic"),
    *("replace_pipeline", "resume", "resume_results", "revoke_token", "set_service_configs"),
)
"""The acts in the audit log; `audit` accepts no other name."""
_AUDIT = sa.text(
    'select happened_at as at, principal, role_name as role, act, group_id as "group", before, after'
    " from sharequeue.audit_trail"
    " where (cardinality(cast(:groups as text[])) = 0 or group_id = any (cast(:groups as text[])))"
    " and (cardinality(cast(:acts as text[])) = 0 or act = any (cast(:acts as text[])))"
    " and happened_at >= coalesce(cast(:since as timestamptz), '-infinity')"
    " order by audit_id desc limit :most"
)


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
@click.option("--since", type=TimeOption(), help="Only from this time on; UTC without a time zone.")
@click.option("--limit", type=Whole(1), default=50, show_default=True, help="Maximum number of entries.")
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
    output.rows(map(dict, found), now=now)


COMMANDS = (audit,)
