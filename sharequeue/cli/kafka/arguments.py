"""The arguments of `kafka-share-groups.sh`: which may be combined, with Kafka's error messages.

Usage errors end with exit code 1, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import click

__all__ = ["KafkaCommand", "check", "moment_of"]

_ACTIONS = ("list", "describe", "delete", "reset_offsets", "delete_offsets")
_WAYS = ("from_file", "to_current", "to_datetime", "to_earliest", "to_latest", "to_offset")


def check(context: click.Context, verbose: bool, given: Mapping[str, Any]) -> None:
    """Check which arguments may be combined, in the order in which Kafka's tool does."""

    def has(name: str) -> bool:
        return given[name] not in (None, False, ())

    with_describe = [name for name in ("members", "offsets") if has(name)] + ["verbose"] * verbose
    with_either = ["state"] if given["state"] is not None and not given["list"] else []
    if not given["describe"]:
        unavailable(context, with_describe + with_either)
    if given["describe"]:
        if not has("groups") and not has("all_groups"):
            usage(context, "Option [describe] takes one of these options: [all-groups], [group]")
        if sum((has("members"), has("offsets"), given["state"] is not None)) > 1:
            usage(
                context, "Option [describe] takes at most one of these options: [members], [offsets], [state]"
            )
        if given["state"]:
            usage(context, "Option [describe] does not take a value for [state]")
    if given["delete"]:
        if not has("groups") and not has("all_groups"):
            usage(context, "Option [delete] takes the options [group] or [all-groups]")
        if has("groups") and has("all_groups"):
            usage(context, "Option [delete] takes either [group] or [all-groups], not both.")
        if has("topics"):
            usage(context, "Option [delete] does not take the option: [topic]")
    if given["delete_offsets"] and not (has("groups") and has("topics")):
        usage(context, "Option [delete-offsets] takes the following options: [group], [topic]")
    if (given["delete_offsets"] or given["reset_offsets"]) and len(given["groups"]) > 1:
        usage(context, "Found multiple arguments for option group, but you asked for only one")
    if given["reset_offsets"]:
        _check_reset(context, given, [name for name in _WAYS if has(name)])
    for other in ("all_groups", "list"):
        if has("groups") and has(other):
            usage(context, f'Option "[group]" can\'t be used with option "[{option_name(other)}]"')
    for other in ("list", "describe"):
        if has("topics") and has(other):
            usage(context, f'Option "[topic]" can\'t be used with option "[{other}]"')
    if sum(bool(given[action]) for action in _ACTIONS) != 1:
        listed = ", ".join(f"--{option_name(action)}" for action in _ACTIONS)
        usage(context, f"Command must include exactly one action: {listed}.")


def _check_reset(context: click.Context, given: Mapping[str, Any], ways: Sequence[str]) -> None:
    if given["dry_run"] and given["execute"]:
        usage(context, "Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not given["dry_run"] and not given["execute"]:
        usage(context, "Option [reset-offsets] takes the option: [execute] or [dry-run]")
    if not given["groups"]:
        usage(context, "Option [reset-offsets] takes the option: [group]")
    if len(ways) > 1:
        first, second = ways[0], ways[1]
        usage(
            context, f'Option "[{option_name(first)}]" can\'t be used with option "[{option_name(second)}]"'
        )
    if not ways:
        listed = ", ".join(f"[{option_name(way)}]" for way in _WAYS)
        usage(context, f"Option [reset-offsets] takes one of these options: {listed}")
    # --topic together with --all-topics is allowed, as in Kafka: the given topics count.
    for name, option in (("topics", "topic"), ("all_topics", "all-topics")):
        if given[name] and ways == ["from_file"]:
            usage(context, f'Option "[{option}]" can\'t be used with option "[from-file]"')
    if not given["topics"] and not given["all_topics"] and ways != ["from_file"]:
        usage(context, "Option [reset-offsets] takes one of these options: [all-topics], [topic]")


def option_name(name: str) -> str:
    """Return an option in the form of the command line."""
    return name.replace("_", "-")


class KafkaCommand(click.Command):
    """A command whose usage errors are Kafka's: the message on stderr, exit code 1."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; report errors with the messages of Kafka's parser."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            usage(ctx, f"{error.option_name.lstrip('-')} is not a recognized option")
        except click.UsageError as error:
            usage(ctx, error.format_message())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; report later errors in its arguments in the same way."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            usage(ctx, error.format_message())


def usage(context: click.Context, message: str) -> NoReturn:
    """Print a usage error, and end with exit code 1."""
    click.echo(message, err=True)
    click.echo(f"{context.command_path} --help lists the options.", err=True)
    context.exit(1)


def unavailable(context: click.Context, names: Sequence[str]) -> None:
    """Refuse options that cannot be combined with the others, if there are any."""
    if names:
        usage(
            context,
            f"Option(s) [{', '.join(names)}] are unavailable given other options on the command line",
        )


def moment_of(text: str) -> datetime:
    """Return a time as Kafka's tools read it, in UTC if it has no zone. Raises ValueError with their message."""
    if "T" not in text:
        raise ValueError("Error parsing timestamp. It does not contain a 'T' according to ISO8601 format")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f'Unparseable date: "{text}"') from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
