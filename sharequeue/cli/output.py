"""How a result is written: as a table for people, as JSON for programs; the same figures in both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

__all__ = ["home_option", "output_option", "print_line", "print_rows", "print_to_stderr"]

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])


def output_option(wrapped: Wrapped) -> Wrapped:
    """Add `-o text|json`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How the result is written.",
    )(wrapped)


def home_option(wrapped: Wrapped) -> Wrapped:
    """Add `--home`."""
    return click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="SHAREQUEUE_HOME",
        show_envvar=True,
        help="The data folder; .sharequeue in the working directory by default.",
    )(wrapped)


def print_line(line: str) -> None:
    """Print a line of progress on stdout, at once."""
    click.echo(line)


def print_to_stderr(line: str) -> None:
    """Print a line of progress on stderr, where stdout carries JSON."""
    click.echo(line, err=True)


def print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """Print rows as a table with `columns` as its head, or as a JSON list of objects.

    A row's keys are the columns in lower case with underscores; missing values print as `-`, as Kafka's tools
    do.
    """
    if output == "json":
        click.echo(json.dumps([dict(row) for row in rows], default=_plain, indent=2))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        values = [row.get(_key(column)) for row in rows]
        numeric = any(isinstance(value, int) for value in values)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(_key(column))) for column in columns))
    console = Console()
    if not console.is_terminal:
        console.width = 240  # a pipe has no width; breaking lines there would hurt
    console.print(table)


def _key(column: str) -> str:
    return column.lower().replace("-", "_")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return str(_plain(value)) if isinstance(value, date | datetime) else str(value)


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
