"""Write results: a table for people, JSON for programs, with the same columns in both.

A command declares its columns once (`@answers(text("GROUP"), number("LAG"))`). The table's head and the keys of the
JSON objects come from that declaration, so they cannot differ. Results go to stdout; so does progress with text,
while with JSON it goes to stderr; warnings go to stderr.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from sharequeue.domain.moments import moment_of, span
from sharequeue.domain.names import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "Column",
    "Output",
    "age",
    "answers",
    "flag",
    "moment",
    "nested",
    "number",
    "row_of",
    "text",
]

WIDTH: Final = 100
"""Rows with ordinary names are not longer than this without `--verbose`."""
_LEAST: Final = 16
"""The number of characters that a shortened text keeps."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result. Without `--verbose`, text has no `wide` ones, and `cut` ones are shortened.

    A column with a refusal or a reason to wait is not shortened: an operator must act on it.
    """

    name: str
    kind: str = "text"
    wide: bool = False
    cut: bool = False

    @property
    def key(self) -> str:
        """The name in JSON: START-OFFSET is start_offset."""
        return re.sub(r"[^a-z0-9]+", "_", self.name.lower()).strip("_")

    def plain(self, value: object) -> object:
        """Return the value for JSON."""
        if isinstance(value, timedelta):
            return value.total_seconds()
        if self.kind == "moment" and isinstance(value, datetime):
            return round(value.timestamp() * 1000)
        plain = ("number", "flag", "age", "nested", "moment")
        return value if value is None or self.kind in plain else str(value)

    def shown(self, value: object, now: datetime, *, exact: bool) -> str:
        """Return the value for a person; `-` if it is missing, as in Kafka's tools."""
        if value is None:
            return "-"
        if self.kind == "moment" and isinstance(value, int):
            # One of Kafka's times, in milliseconds.
            at = moment_of(value)
            return f"{value} ms" if at is None else self.shown(at, now, exact=exact)
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat(timespec="seconds") if exact else _ago(value, now)
        if isinstance(value, timedelta):
            return str(value) if exact else span(value)
        if isinstance(value, dict | list):
            return json.dumps(value, default=str)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return str(value)


def text(name: str, *, wide: bool = False, cut: bool = False) -> Column:
    """Return a column of texts."""
    return Column(name, "text", wide, cut)


def number(name: str, *, wide: bool = False) -> Column:
    """Return a column of numbers."""
    return Column(name, "number", wide)


def flag(name: str, *, wide: bool = False) -> Column:
    """Return a column of yes or no."""
    return Column(name, "flag", wide)


def moment(name: str, *, wide: bool = False) -> Column:
    """Return a column of times: "12 s ago" for people, milliseconds since 1970 for programs."""
    return Column(name, "moment", wide)


def age(name: str, *, wide: bool = False) -> Column:
    """Return a column of durations: "3 min" for people, seconds for programs."""
    return Column(name, "age", wide)


def nested(name: str, *, wide: bool = False, cut: bool = False) -> Column:
    """Return a column of JSON values."""
    return Column(name, "nested", wide, cut)


def _ago(at: datetime, now: datetime) -> str:
    away = at - now
    if abs(away) > timedelta(days=7):
        return at.astimezone(UTC).date().isoformat()
    return f"in {span(away)}" if away > timedelta(0) else f"{span(away)} ago"


def row_of(found: DataclassInstance, **more: object) -> dict[str, Any]:
    """Return the fields and properties of a dataclass as a row, with `more` cells or others in their place."""
    names = [each.name for each in fields(found)]
    names += [name for name, each in vars(type(found)).items() if isinstance(each, property)]
    return {name: getattr(found, name) for name in names if name not in more} | more


@dataclass(frozen=True, slots=True)
class Output:
    """The writer of a command's result. Made by `@answers`."""

    columns: Sequence[Column] = ()
    format: str = "text"
    verbose: bool = False
    one: bool = False
    """Whether the result is a single object, in JSON not in a list."""
    views: Mapping[str, Sequence[Column]] = field(default_factory=dict)
    """Other columns, by the option of the command that selects them."""
    planned: str = "dry run"
    """The status of planned changes."""

    @property
    def text(self) -> bool:
        """Whether a person reads the output."""
        return self.format == "text"

    def view(self, option: str) -> Output:
        """Return an output with the columns of this option of the command."""
        return replace(self, columns=self.views[option])

    def rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        *tables: Sequence[str],
        now: datetime | None = None,
    ) -> None:
        """Print rows: as one table, as several tables with the named columns of the same rows, or as JSON.

        A row's keys are those of the columns. `now` is the reference for times, by default the machine's clock.
        """
        if self.format == "jsonl":
            for row in rows:
                click.echo(json.dumps(self._plain(row), default=_as_text))
            return
        rows = list(rows)
        if self.text:
            for index, names in enumerate(tables or (tuple(each.name for each in self.columns),)):
                if index:
                    click.echo()
                shown = [
                    each for each in self.columns if each.name in names and (self.verbose or not each.wide)
                ]
                self._table(shown, rows, now or datetime.now(UTC))
            return
        plain = [self._plain(row) for row in rows]
        if self.one:
            click.echo(json.dumps(plain[0], default=_as_text))
        else:
            click.echo(json.dumps(plain, default=_as_text, indent=2))

    def one_row(self, row: Mapping[str, Any], sentence: str) -> None:
        """Print a result of one row: as a sentence for people, as an object for programs."""
        if self.text:
            click.echo(sentence)
        else:
            self.rows([row])

    def violations(self, found: Sequence[str], otherwise: str) -> None:
        """Print the violations that a check found, and end with exit code 1; without any, print `otherwise`."""
        if not self.text:
            self.rows({self.columns[0].key: each} for each in found)
        for each in found:
            self.note(each)
        if found:
            raise click.exceptions.Exit(1)
        self.note(otherwise)

    def note(self, line: str) -> None:
        """Print a line for people only, in addition to the result."""
        if self.text:
            click.echo(line)

    def say(self, line: str) -> None:
        """Print a line of progress immediately."""
        click.echo(line, err=not self.text)

    @staticmethod
    def warn(line: str) -> None:
        """Print a warning on stderr."""
        click.echo(f"warning: {line}", err=True)

    def _plain(self, row: Mapping[str, Any]) -> dict[str, object]:
        return {each.key: each.plain(row.get(each.key)) for each in self.columns}

    def _table(self, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], now: datetime) -> None:
        cells = [
            [printable(each.shown(row.get(each.key), now, exact=self.verbose)) for each in columns]
            for row in rows
        ]
        widths = [
            max(len(each.name), *(len(line[index]) for line in cells), 0)
            for index, each in enumerate(columns)
        ]
        over = sum(widths) + 2 * (len(widths) - 1) - WIDTH
        for index in reversed(range(len(columns))):
            if columns[index].cut and over > 0 and not self.verbose:
                least = max(_LEAST, len(columns[index].name))
                cut = min(over, max(widths[index] - least, 0))
                widths[index], over = widths[index] - cut, over - cut
        right = [any(isinstance(row.get(each.key), int) for row in rows) for each in columns]
        lines = [[each.name for each in columns], ["─" * width for width in widths], *cells]
        for line in lines:
            padded = (
                cell.rjust(width) if numeric else cell.ljust(width)
                for cell, width, numeric in zip(map(_cut, line, widths), widths, right, strict=True)
            )
            click.echo("  ".join(padded).rstrip())


def answers(
    *columns: Column, one: bool = False, views: Mapping[str, Sequence[Column]] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add `-o` and `--verbose`; the command gets an `Output` as `output`.

    Raises ValueError for two columns with the same name.
    """
    twice = [each.name for index, each in enumerate(columns) if each.key in {c.key for c in columns[:index]}]
    if twice:
        raise ValueError(f"two columns have the name {twice[0]}")

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(*, output: str, verbose: bool, **given: Any) -> None:
            command(output=Output(columns, output, verbose, one, views or {}), **given)

        for option in (
            click.option(
                "-o",
                "--output",
                type=click.Choice(("text", "json", "jsonl")),
                default="text",
                show_default=True,
                help="The format of the result.",
            ),
            click.option("--verbose", is_flag=True, help="All columns, whole texts and exact times."),
        ):
            called = option(called)
        # Read by the generator of the reference pages.
        called.columns = {"": columns, **(views or {})}  # type: ignore[attr-defined]
        return called

    return declare


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _as_text(value: object) -> object:
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
