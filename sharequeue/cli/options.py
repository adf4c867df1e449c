"""The options that commands share: addresses of servers, selected groups, `--execute`.

All commands use the same rules. A setting comes from its option, else from the environment, else from `stack.json` in
the data folder. Commands that delete, move or send records again are dry runs without `--execute`. With it, they ask
on a terminal, and are refused if nobody can be asked (no terminal, or `-o json`), unless `--yes` is given.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from sharequeue.cli.failures import setting_failure
from sharequeue.cli.output import Output
from sharequeue.database import Database
from sharequeue.domain.errors import GroupIdNotFound, InvalidConfig
from sharequeue.domain.names import topic_name_problem
from sharequeue.domain.offsets import MAX_OFFSET, MAX_PARTITION, OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs.texts import reset_duration
from sharequeue.groups.group_names import all_group_names, require_among, require_group

__all__ = [
    "LONGEST_SECONDS",
    "OFFSET",
    "PARTITION",
    "Finite",
    "GroupsNamed",
    "TimeOption",
    "Whole",
    "create_group_option",
    "duration",
    "execute_option",
    "group_option",
    "groups_option",
    "home_option",
    "named_group",
    "parse_offsets",
    "parse_share_partition",
    "parse_topics",
    "require_group_or_flag",
    "settings_options",
    "topic_argument",
    "topic_option",
]

_LONGEST = timedelta(days=36_500)
"""The longest duration of an option. The database allows time spans of up to 100 years."""
LONGEST_SECONDS = int(_LONGEST.total_seconds())
"""The same, for options in seconds."""
_ADDRESSES = (
    click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="SHAREQUEUE_HOME",
        show_envvar=True,
        help="The data folder; default: .sharequeue in the working directory.",
    ),
    click.option(
        "--database-url",
        envvar="SHAREQUEUE_DATABASE_URL",
        show_envvar=True,
        help="The Postgres database. Other users of this machine can see it in the list of processes.",
    ),
    click.option(
        "--bootstrap-server",
        "bootstrap_servers",
        envvar="SHAREQUEUE_BOOTSTRAP_SERVERS",
        show_envvar=True,
        help="The Kafka broker, as host:port,….",
    ),
    click.option(
        "--service-url",
        envvar="SHAREQUEUE_SERVICE_URL",
        show_envvar=True,
        help="The coordinator service.",
    ),
    click.option(
        "--service-token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="SHAREQUEUE_SERVICE_TOKEN_FILE",
        show_envvar=True,
        help="A file with a bearer token for the service; else SHAREQUEUE_SERVICE_TOKEN has the token.",
    ),
)


def _check_database(settings: Settings) -> None:
    """Refuse an invalid address or invalid options of the database before anything is done."""
    try:
        if make_url(settings.database_url).get_backend_name() != "postgresql":
            raise ArgumentError("expected a Postgres URL")
        _ = settings.database
    except (ArgumentError, ValueError) as error:
        raise setting_failure(error) from error


class Finite(click.FloatRange):
    """A number within limits: not NaN, which no limit refuses, and not infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number within limits. The help has the lower limit only: the upper one is that of the database."""

    def __init__(self, least: int, most: int = MAX_OFFSET) -> None:
        super().__init__(least)
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        number = int(super().convert(value, param, ctx))
        if number > self._most:
            self.fail(f"{number} is too large: expected at most {self._most}.", param, ctx)
        return number


PARTITION = Whole(0, MAX_PARTITION)
"""The number of a partition."""
OFFSET = Whole(0)
"""An offset."""


class TimeOption(click.DateTime):
    """A time: ISO-8601, UTC without a time zone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time in UTC."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r}: expected YYYY-MM-DDTHH:mm:SS.sss, in UTC, or with the time zone as its difference from "
                "UTC, such as +02:00",
                param,
                ctx,
            )


def home_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--home`, for commands of the stack on this machine."""
    return _ADDRESSES[0](command)


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--home` and the addresses; the command gets `settings`."""

    @functools.wraps(command)
    def called(
        *,
        home: Path | None,
        database_url: str | None,
        bootstrap_servers: str | None,
        service_url: str | None,
        service_token_file: Path | None,
        **given: Any,
    ) -> None:
        named: dict[str, Any] = {
            "database_url": database_url,
            "bootstrap_servers": bootstrap_servers,
            "service_url": service_url,
            "service_token_file": service_token_file,
        }
        settings = Settings.load(home, **{name: value for name, value in named.items() if value})
        if settings.knows("database_url"):
            _check_database(settings)
        command(settings=settings, **given)

    for option in reversed(_ADDRESSES):
        called = option(called)
    return called


def execute_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--execute`, `--dry-run` (the default) and `--yes`; the command gets `execute`.

    On a terminal it first shows what would be done, then asks. Put it below `@answers`, whose `output` it needs.
    """

    @functools.wraps(command)
    def called(*, output: Output, execute: bool, yes: bool, **given: Any) -> None:
        if execute and not yes:
            if not output.text or not (sys.stdin.isatty() and sys.stderr.isatty()):
                why = "there is no terminal" if output.text else f"-o {output.format} cannot ask"
                raise click.UsageError(f"--execute asks for confirmation, and {why}: add --yes.")
            # The output of --export goes to a file, once.
            shown = redirect_stdout(sys.stderr) if given.get("export") else nullcontext()
            # If a part is refused, the rest can still be done, as with --yes.
            with shown, suppress(click.exceptions.Exit):
                command(output=replace(output, planned="to be done"), execute=False, **given)
            if not click.confirm("Make these changes?", err=True):
                raise click.ClickException("Nothing was changed.")
        command(output=output, execute=execute, **given)
        if not execute and not given.get("export"):
            output.note("a dry run: nothing was changed; add --execute to make the changes")

    for option in (
        click.option(
            "--execute/--dry-run", default=False, help="Make the changes; by default only show them."
        ),
        click.option(
            "--yes",
            "-y",
            is_flag=True,
            help="Do not ask; --execute needs it without a terminal and with JSON.",
        ),
    ):
        called = option(called)
    return called


def _complete_group(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    try:
        with Database.open(Settings.load(context.params.get("home")), pool_size=1) as database:
            return [CompletionItem(name) for name in all_group_names(database) if name.startswith(incomplete)]
    except Exception:  # completion has no place to show an error
        return []


def named_group(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """Return the group or groups of an option. Raises BadParameter for an empty name."""
    if given == "" or (isinstance(given, tuple) and "" in given):
        raise click.BadParameter("the name is empty: give the id of a share group", context, parameter)
    return given


def group_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--group`, one share group."""
    return click.option(
        "--group",
        required=True,
        callback=named_group,
        shell_complete=_complete_group,
        help="The share group.",
    )(command)


def _legal_topic(context: click.Context, parameter: click.Parameter, given: str) -> str:
    if problem := topic_name_problem(given):
        raise click.BadParameter(problem, context, parameter)
    return given


topic_argument = click.argument("topic", callback=_legal_topic)


topic_option = click.option(
    "--topic", "topics", multiple=True, help="Only this topic, or topic:0,1; may be repeated."
)
create_group_option = click.option(
    "--create-group", is_flag=True, help="Create the group if it does not exist."
)


def require_group_or_flag(database: Database, group: str) -> None:
    """Raise GroupIdNotFound, with how to create the group, if it does not exist."""
    try:
        require_group(database, group)
    except GroupIdNotFound as error:
        raise GroupIdNotFound(f"{error} --create-group creates it.") from None


@dataclass(frozen=True, slots=True)
class GroupsNamed:
    """The groups that a command line selects."""

    names: tuple[str, ...]
    every: bool

    def of(self, database: Database, *, missing: bool = False) -> list[str]:
        """Return their names. Raises GroupIdNotFound for a name that does not exist, unless `missing`."""
        if self.every:
            return all_group_names(database)
        if not missing:
            known = all_group_names(database)
            for name in self.names:
                require_among(known, name)
        return list(dict.fromkeys(self.names))

    def checked(self, database: Database, check: Callable[[str | None], Sequence[str]]) -> list[str]:
        """Return what a check of one group finds in them; for all groups it is called once, with None."""
        chosen: list[str | None] = [None] if self.every else list(self.of(database))
        return [each for group in chosen for each in check(group)]


def groups_option(
    *, default_all: bool = False, none: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add `--group` (repeatable) and `--all-groups`; the command gets them as `named`.

    Without a name it selects every group with `default_all`, and no group with `none`.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(*, group: tuple[str, ...], all_groups: bool, **given: Any) -> None:
            if group and all_groups:
                raise click.UsageError("Give --group or --all-groups, not both.")
            if not (group or all_groups or default_all or none):
                raise click.UsageError("Give --group or --all-groups.")
            command(named=GroupsNamed(group, all_groups or (default_all and not group)), **given)

        for option in (
            click.option("--all-groups", is_flag=True, help="Every share group."),
            click.option(
                "--group",
                multiple=True,
                callback=named_group,
                shell_complete=_complete_group,
                help="A share group; may be repeated." + (" Default: all of them." if default_all else ""),
            ),
        ):
            called = option(called)
        return called

    return add


def parse_topics(given: Sequence[str]) -> dict[str, tuple[int, ...] | None]:
    """Parse topics with their partitions, from `topic` or `topic:0,1`; None means all partitions."""
    wanted: dict[str, tuple[int, ...] | None] = {}
    for each in given:
        topic, colon, numbers = each.partition(":")
        try:
            parts = tuple(int(number) for number in numbers.split(",")) if colon else None
        except ValueError:
            raise click.UsageError(f"{each!r}: partitions must be numbers, such as {topic}:0,1") from None
        if any(not 0 <= part <= MAX_PARTITION for part in parts or ()):
            raise click.UsageError(f"{each!r}: a partition is a number from 0 to {MAX_PARTITION}")
        before = wanted.get(topic, ())
        # A topic given twice has both lists; without partitions it is all of them.
        wanted[topic] = None if parts is None or before is None else tuple(dict.fromkeys((*before, *parts)))
    return wanted


def parse_share_partition(given: str) -> tuple[str, int]:
    """Parse one topic and one partition of it, from `topic:0`."""
    named = [(name, parts) for name, parts in parse_topics([given]).items() if parts and len(parts) == 1]
    if not named:
        raise click.UsageError("give one share-partition, such as --topic flights:0")
    ((name, parts),) = named
    return name, (parts or (0,))[0]


def parse_offsets(given: str) -> OffsetSet:
    """Parse offsets from `5,7-9`: single ones, and runs with both ends inclusive."""
    ranges = []
    for each in given.split(","):
        first, dash, last = each.strip().partition("-")
        try:
            start, end = int(first), int(last if dash else first)
        except ValueError:
            start, end = 1, 0
        if not 0 <= start <= end <= MAX_OFFSET:
            raise click.BadParameter(
                f"{each!r} is not an offset or a range of offsets: write 5 or 7-9, of 0 to {MAX_OFFSET}",
                param_hint="--offsets",
            )
        ranges.append((start, end + 1))
    return OffsetSet.of(*ranges)


def duration(context: click.Context, parameter: click.Parameter, given: str | None) -> timedelta | None:
    """Parse the duration of an option, an ISO-8601 one such as PT10M."""
    if given is None:
        return None
    try:
        found = reset_duration(f"by_duration:{given}") or timedelta()
    except InvalidConfig:
        raise click.BadParameter(
            f"{given!r} is not an ISO-8601 duration of 0 or more: write PT10M for 10 minutes"
        ) from None
    if found > _LONGEST:
        raise click.BadParameter(
            f"{given!r} is too long: expected {_LONGEST.days:,} days (P{_LONGEST.days}D) at most"
        )
    return found
