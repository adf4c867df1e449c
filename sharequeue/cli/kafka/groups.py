"""`sharequeue share-groups`: Kafka's `kafka-share-groups.sh`, for groups of this database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from sharequeue.cli.kafka.arguments import KafkaCommand, check, moment_of
from sharequeue.cli.kafka.views import members_view, offsets_view, state_view, table
from sharequeue.cli.options import parse_topics, settings_options
from sharequeue.cli.output import Output, answers, number, text
from sharequeue.database import Database
from sharequeue.domain.errors import GroupIdNotFound, ShareError
from sharequeue.domain.names import printable
from sharequeue.domain.settings import Settings
from sharequeue.groups.descriptions import GroupDescription, describe_group, list_groups
from sharequeue.kafka.offset_resets import OffsetResets, ResetOffsets, of_file
from sharequeue.kafka.topics import Topics
from sharequeue.state import State

_STATES = ("Stable", "Empty", "Dead")
_JAVA = {
    "NON_EMPTY_GROUP": "GroupNotEmptyException",
    "GROUP_AUTHORIZATION_FAILED": "GroupAuthorizationException",
    "SASL_AUTHENTICATION_FAILED": "SaslAuthenticationException",
}
_ABSENT = "This server does not host this topic-partition."


@click.command("share-groups", cls=KafkaCommand)
@settings_options
@answers(
    text("GROUP"),
    text("TOPIC"),
    number("PARTITION"),
    number("LEADER-EPOCH"),
    number("START-OFFSET"),
    number("LAG"),
    number("NEW-OFFSET"),
    text("COORDINATOR"),
    text("STATE"),
    number("GROUP-EPOCH"),
    number("ASSIGNMENT-EPOCH"),
    number("#MEMBERS"),
    text("CONSUMER-ID"),
    text("HOST"),
    text("CLIENT-ID"),
    number("#PARTITIONS"),
    number("MEMBER-EPOCH"),
    text("ASSIGNMENT"),
    text("STATUS"),
)
@click.option("--list", is_flag=True, help="List all share groups.")
@click.option("--describe", is_flag=True, help="Describe groups: offsets, members or state.")
@click.option("--delete", is_flag=True, help="Delete groups.")
@click.option("--reset-offsets", is_flag=True, help="Reset a group's offsets; it must have no members.")
@click.option("--delete-offsets", is_flag=True, help="Delete a group's offsets of topics.")
@click.option("--group", "groups", multiple=True, help="The share group; may be repeated.")
@click.option("--all-groups", is_flag=True, help="All share groups.")
@click.option("--topic", "topics", multiple=True, help="A topic, or topic:0,1; may be repeated.")
@click.option("--all-topics", is_flag=True, help="All topics with offsets of the group.")
@click.option("--members", is_flag=True, help="Describe members.")
@click.option("--offsets", is_flag=True, help="Describe offsets, the default.")
@click.option(
    "--state", is_flag=False, flag_value="", help="Describe the state; or list groups in these states."
)
@click.option("--dry-run", is_flag=True, help="Only show what a reset would do.")
@click.option("--execute", is_flag=True, help="Do the reset.")
@click.option("--to-earliest", is_flag=True, help="To the start of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-current", is_flag=True, help="To the group's current start.")
@click.option("--to-offset", type=int, help="To this offset.")
@click.option("--to-datetime", help="To the first record at or after YYYY-MM-DDThh:mm:ss.sss.")
@click.option("--from-file", type=click.Path(path_type=Path), help="To the offsets in a file of --export.")
@click.option("--export", is_flag=True, help="Print the offsets as CSV.")
@click.option(
    "--timeout",
    type=click.IntRange(10, 300_000),  # the bounds of Kafka's client
    default=30000,
    show_default=True,
    help="Longest wait, in milliseconds.",
)
@click.option(
    "--command-config", help="Not read: the variables SHAREQUEUE_KAFKA_… have the security settings."
)
@click.pass_context
def share_groups(
    context: click.Context,
    /,
    settings: Settings,
    output: Output,
    timeout: int,
    command_config: str | None,
    **given: Any,
) -> None:
    """Kafka's `kafka-share-groups.sh`: list, describe, delete groups, reset and delete their offsets.

    Arguments, columns and messages are Kafka's; a failed describe or delete ends with exit code 1. `--delete` and
    `--delete-offsets` act immediately, as in Kafka. --bootstrap-server must be the state's cluster.
    """
    check(context, output.verbose, given)
    if command_config is not None:
        output.warn(
            "--command-config is not read: the variables SHAREQUEUE_KAFKA_… have the security settings"
        )
    with Database.open(settings) as database, Topics(settings, timeout=timeout / 1000) as broker:
        tool = _Tool(settings, output, database, broker, given)
        try:
            tool.state.administration.check_cluster(broker.cluster_id())
            if given["list"]:
                tool.list_groups()
            elif given["describe"]:
                tool.describe()
            elif given["delete"]:
                tool.delete()
            elif given["reset_offsets"]:
                tool.reset_offsets()
            else:
                tool.delete_offsets()
        except ShareError as error:
            tool.fail(f"{_java_name(error)}: {error}")


def _java_name(error: ShareError) -> str:
    """Return the exception's name in Kafka's tools."""
    return "org.apache.kafka.common.errors." + _JAVA.get(error.name, f"{type(error).__name__}Exception")


class _Tool:
    """One run of the tool."""

    def __init__(
        self,
        settings: Settings,
        output: Output,
        database: Database,
        broker: Topics,
        given: Mapping[str, Any],
    ) -> None:
        self.settings, self.output, self.database = settings, output, database
        self.broker, self.state, self.given = broker, State(database), given

    def fail(self, reason: str) -> NoReturn:
        """Report that the command failed, as Kafka's tool does, and end with exit code 1."""
        self.output.say(f"\nError: Executing share group command failed due to {reason}")
        raise click.exceptions.Exit(1)

    def print(self, rows: Sequence[Mapping[str, Any]], shown: str) -> None:
        """Print a result: as Kafka's tool does, or as JSON."""
        if self.output.text:
            click.echo(shown)
        else:
            self.output.rows(rows)

    def list_groups(self) -> None:
        """List groups, with their states if requested."""
        found = list_groups(self.database)
        wanted = self.given["state"]
        if wanted is None:
            rows = [{"group": each.group_id} for each in found]
            if found or not self.output.text:
                self.print(rows, "\n".join(printable(each.group_id) for each in found))
            return
        states = [each.strip().capitalize() for each in wanted.split(",") if each.strip()]
        if set(states) - set(_STATES):
            click.echo(f"Invalid state list '{wanted}'. Valid states are: {', '.join(_STATES)}", err=True)
            raise click.exceptions.Exit(1)
        rows = [
            {"group": each.group_id, "state": each.group_state}
            for each in found
            if not states or each.group_state in states
        ]
        self.print(rows, table(("GROUP", "STATE"), rows))

    def _groups(self) -> list[GroupDescription]:
        names = self.given["groups"]
        if self.given["all_groups"]:
            names = [each.group_id for each in list_groups(self.database)]
        found = []
        for name in sorted(set(names)):
            try:
                found.append(describe_group(self.database, name))
            except GroupIdNotFound as error:
                self.fail(f"{_java_name(error)}: Group {name} not found.")
        return found

    def describe(self) -> None:
        """Describe groups: offsets, members or state."""
        offsets = not self.given["members"] and self.given["state"] is None
        everything: list[dict[str, Any]] = []
        for group in self._groups():
            if self.given["members"]:
                names, rows = members_view(group, verbose=self.output.verbose)
            elif not offsets:
                names, rows = state_view(group, self.settings, verbose=self.output.verbose)
            else:
                names, rows = offsets_view(group, self.state, self.broker, verbose=self.output.verbose)
            everything += rows
            if not group.members and not offsets:
                click.echo(f"\nShare group '{group.group_id}' has no active members.", err=True)
            if rows:
                self.output.note("\n" + table(names, rows))
            elif offsets:
                self.output.note(f"\nShare group '{group.group_id}' has no offset information.")
        if not self.output.text:
            self.output.rows(everything)

    def delete(self) -> None:
        """Delete groups immediately."""
        known = {each.group_id: each.group_state for each in list_groups(self.database)}
        failed: dict[str, str] = {}
        done: list[str] = []
        for name in dict.fromkeys(known if self.given["all_groups"] else self.given["groups"]):
            if name not in known:
                failed[name] = f"java.lang.IllegalArgumentException: Group '{name}' is not a share group."
                continue
            try:
                if known[name] != "Empty":
                    failed[name] = (
                        f"org.apache.kafka.common.errors.GroupNotEmptyException: Share group '{name}' is not EMPTY."
                    )
                else:
                    self.state.administration.delete_group(name)
                    done.append(name)
            except ShareError as error:
                failed[name] = f"{_java_name(error)}: {error}"
        quoted = ", ".join(f"'{name}'" for name in done)
        if failed:
            lines = ["\nError: Deletion of some share groups failed:"]
            lines += [f"* Group '{name}' could not be deleted due to: {why}" for name, why in failed.items()]
            lines += [f"\nThese share groups were deleted successfully: {quoted}"] if done else []
        else:
            lines = [f"Deletion of requested share groups ({quoted}) was successful."]
        rows = [{"group": name, "status": "Successful"} for name in done]
        rows += [{"group": name, "status": f"Error: {why}"} for name, why in failed.items()]
        self.print(rows, "\n".join(lines))
        if failed:
            raise click.exceptions.Exit(1)

    def delete_offsets(self) -> None:
        """Delete a group's offsets of topics immediately."""
        group = self.given["groups"][0]
        whole: str | None = None
        status: dict[str, str | None] = dict.fromkeys(sorted(self.given["topics"]))
        members = {each.group_id: each.members for each in list_groups(self.database)}
        if group not in members:
            whole = f"Group {group} not found."
        elif members[group]:
            whole = "The group is not empty."
        for topic in status:
            try:
                if whole is not None:
                    status[topic] = whole
                elif not self.state.administration.delete_offsets(group, topic):
                    there = topic in self.broker.ask([topic]).known
                    status[topic] = "There is no offset information to delete." if there else _ABSENT
            except ShareError as error:
                status[topic] = str(error)
        if whole is not None:
            self.output.say(f"\nError: {whole}")
        rows = [
            {"group": group, "topic": topic, "status": "Successful" if why is None else f"Error: {why}"}
            for topic, why in status.items()
        ]
        self.print(rows, "\n" + table(("TOPIC", "STATUS"), rows))
        if any(status.values()):
            raise click.exceptions.Exit(1)

    def reset_offsets(self) -> None:
        """Reset a group's offsets, or show what that would do. The group is created if it does not exist."""
        group = self.given["groups"][0]
        members = {each.group_id: each.members for each in list_groups(self.database)}
        if members.get(group):
            click.echo(f"Share group '{group}' is not empty.", err=True)
            raise click.exceptions.Exit(1)
        start = self._start(group)
        for warning in start.warnings:
            self.output.say(f"\nWarn: {warning}")
        found = self.state.administration.reset_offsets(
            group, start.offsets, start.topic_ids, execute=self.given["execute"]
        )
        for row in found:
            if row.error is not None:
                self.fail(f"{_java_name(row.error)}: {row.error}")
        rows = [
            {"group": group, "topic": row.topic, "partition": row.partition, "new_offset": row.start_offset}
            for row in found
        ]
        if self.given["export"]:
            self.print(rows, "".join(f"{row.topic},{row.partition},{row.start_offset}\n" for row in found))
            return
        self.print(rows, "\n" + table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows))

    def _start(self, group: str) -> ResetOffsets:
        stored = {(each.topic, each.partition): each.spso for each in self.state.figures.describe(group)}
        wanted: dict[str, tuple[int, ...] | None] = dict.fromkeys(topic for topic, _ in stored)
        if self.given["topics"]:
            wanted = parse_topics(self.given["topics"])
        if self.given["from_file"] is None:
            self._check_topics(wanted)
        resets = OffsetResets(self.broker, wanted)
        if self.given["to_offset"] is not None:
            return resets.to_offsets(self.given["to_offset"])
        if self.given["to_earliest"] or self.given["to_latest"]:
            return resets.to_earliest() if self.given["to_earliest"] else resets.to_latest()
        if self.given["to_datetime"] is not None:
            try:
                return resets.to_datetime(moment_of(self.given["to_datetime"]))
            except ValueError as error:
                self.fail(f"java.text.ParseException: {error}")
        if self.given["from_file"] is not None:
            return of_file(self.broker, self.given["from_file"])
        return resets.to_current(stored)

    def _check_topics(self, wanted: Mapping[str, tuple[int, ...] | None]) -> None:
        known = self.broker.describe(wanted)
        if set(wanted) - set(known):
            self.fail(_ABSENT)
        missing = [
            f"{topic}-{partition}"
            for topic, partitions in wanted.items()
            for partition in partitions or ()
            if partition >= known[topic].partitions
        ]
        if missing:
            self.fail(f'The partitions "{",".join(missing)}" do not exist')


COMMANDS = (share_groups,)
