"""`sharequeue acls`: permissions on groups and topics, with the options of Kafka's `kafka-acls.sh`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import click

from sharequeue.cli.options import execute_option, named_group, settings_options
from sharequeue.cli.output import Output, answers, flag, row_of, text
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.acls import OPERATIONS, PATTERN_TYPES, Acl, AclFilter, Acls

_answers = answers(
    text("RESOURCE-TYPE"),
    text("RESOURCE"),
    text("PATTERN-TYPE"),
    text("PRINCIPAL"),
    text("PERMISSION"),
    text("OPERATION"),
    text("STATUS"),
)
_BY_KAFKAS_SPELLING = {spelt: name for name, spelt in OPERATIONS.items()}


@click.group()
def acls() -> None:
    """Access control on groups and topics. A denial wins. A group or topic without ACLs is open, unless the
    authorizer is configured otherwise."""


def _resource(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--group",
            multiple=True,
            callback=named_group,
            help="The group, or its prefix; * for every group. May be repeated.",
        ),
        click.option(
            "--topic", multiple=True, help="The topic, or its prefix; * for every topic. May be repeated."
        ),
        click.option(
            "--resource-pattern-type",
            "pattern_type",
            type=click.Choice([name.lower() for name in PATTERN_TYPES]),
            help="The meaning of --group and --topic; default: literal when adding or removing, any when listing.",
        ),
        click.option("--allow-principal", multiple=True, help="User:<role> that is allowed; User:* for all."),
        click.option("--deny-principal", multiple=True, help="User:<role> that is denied."),
        click.option(
            "--operation",
            multiple=True,
            type=click.Choice(list(_BY_KAFKAS_SPELLING), case_sensitive=False),
            help="May be repeated; default: All when adding, any when listing or removing.",
        ),
        _answers,
        settings_options,
    ):
        command = option(command)
    return command


@acls.command("list")
@_resource
def list_acls(settings: Settings, output: Output, **chosen: Any) -> None:
    """List the matching ACLs."""
    with Database.open(settings) as database:
        found = {acl for each in _filters(**chosen) for acl in Acls(database).find(each)}
    _print(dict.fromkeys(sorted(found), "in force"), output)


@acls.command()
@_resource
@click.option("--dry-run", is_flag=True, help="Only show what would be added.")
def add(settings: Settings, output: Output, dry_run: bool, **chosen: Any) -> None:
    """Add ACLs: one for each combination of principal, operation and group or topic."""
    filters = [each for each in _filters(**chosen) if each.permission is not None and each.resource_name]
    if not filters:
        raise click.UsageError("Give a --group or a --topic, and an --allow-principal or a --deny-principal.")
    wanted = [
        Acl(
            str(each.principal),
            each.operation or "ALL",
            each.permission or "ALLOW",
            each.pattern_type or "LITERAL",
            str(each.resource_name),
            str(each.resource_type),
        )
        for each in filters
    ]
    with Database.open(settings) as database:
        held = Acls(database)
        if dry_run:
            added = sorted(set(wanted) - set(held.find(AclFilter())))
        else:
            added = [acl for acl in wanted if held.add(acl)]
    output.note(
        f"{len(added)} {'would be ' if dry_run else ''}added, {len(wanted) - len(added)} existed before"
    )
    done = "dry run" if dry_run else "added"
    _print({acl: done if acl in added else "existed before" for acl in wanted}, output)


@acls.command()
@_resource
@execute_option
def remove(settings: Settings, output: Output, execute: bool, **chosen: Any) -> None:
    """Remove the ACLs that match all given options; at least one is required."""
    if chosen["group"] or chosen["topic"]:
        chosen["pattern_type"] = chosen["pattern_type"] or "literal"
    filters = _filters(**chosen)
    if filters == [AclFilter()]:
        raise click.UsageError(
            "Nothing is selected: give a --group, a --topic, a principal, or an --operation."
        )
    with Database.open(settings) as database:
        gone = {acl for each in filters for acl in Acls(database).remove(each, dry_run=not execute)}
    output.note(f"{'removed' if execute else 'would remove'} {len(gone)}")
    _print(dict.fromkeys(sorted(gone), "removed" if execute else output.planned), output)


@acls.command()
@settings_options
@answers(flag("ALLOW-EVERYONE-IF-NO-ACL-FOUND"), flag("BEFORE"), one=True)
@click.option("--allow-everyone-if-no-acl-found", "allow", type=bool, required=True)
def authorizer(settings: Settings, output: Output, allow: bool) -> None:
    """Open (true) or close (false) the groups and topics without ACLs."""
    with Database.open(settings) as database:
        before = Acls(database).allow_everyone_if_no_acl_found(allow)
    output.one_row(
        {"allow_everyone_if_no_acl_found": allow, "before": before},
        f"allow.everyone.if.no.acl.found={str(allow).lower()} (was {str(before).lower()})",
    )


def _filters(
    group: Sequence[str],
    topic: Sequence[str],
    pattern_type: str | None,
    allow_principal: Sequence[str],
    deny_principal: Sequence[str],
    operation: Sequence[str],
) -> list[AclFilter]:
    """Return one filter for each combination of the given values."""
    allow: Literal["ALLOW"] = "ALLOW"
    deny: Literal["DENY"] = "DENY"
    anybody: list[tuple[None, None]] = [(None, None)]
    anything: list[tuple[None, None]] = [(None, None)]
    resources = [("GROUP", each) for each in group] + [("TOPIC", each) for each in topic]
    named = [(each, allow) for each in allow_principal] + [(each, deny) for each in deny_principal]
    return [
        AclFilter(
            principal,
            _BY_KAFKAS_SPELLING[each] if each else None,
            permission,
            pattern_type.upper() if pattern_type else None,
            name,
            kind,
        )
        for kind, name in resources or anything
        for principal, permission in named or anybody
        for each in operation or (None,)
    ]


def _print(found: Mapping[Acl, str], output: Output) -> None:
    output.rows(
        row_of(acl, resource=acl.resource_name, operation=OPERATIONS[acl.operation], status=status)
        for acl, status in found.items()
    )


COMMANDS = (acls,)
