"""The options that select letters, of the commands that list, redrive and discard them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from sharequeue.cli.options import PARTITION, TimeOption, named_group
from sharequeue.deadletters.redrive.selection import Selection, parse_header, parse_offsets
from sharequeue.domain.offsets import OffsetSet

__all__ = ["selection_options"]


def _offsets(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[int, OffsetSet]:
    try:
        return parse_offsets(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _header(context: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, str] | None:
    try:
        return None if given is None else parse_header(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_OPTIONS = (
    click.option("--cause", type=click.Choice(["rejected", "exhausted"]), help="Only letters of this cause."),
    click.option(
        "--since", type=TimeOption(), help="Only letters written at or after this time; UTC without a zone."
    ),
    click.option(
        "--until", type=TimeOption(), help="Only letters written before this time; UTC without a zone."
    ),
    click.option("--group", callback=named_group, help="Only letters of this share group."),
    click.option("--source-topic", help="Only records of this topic."),
    click.option("--source-partition", type=PARTITION, help="Only records of this partition."),
    click.option(
        "--header",
        callback=_header,
        metavar="NAME=VALUE",
        help="Only letters with this header, by its exact text.",
    ),
    click.option(
        "--offsets",
        multiple=True,
        callback=_offsets,
        metavar="P:FIRST-LAST",
        help="Only letters at these offsets of the dead-letter topic; may be repeated.",
    ),
)


def selection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select letters; the command gets them as one `selection`."""

    @functools.wraps(command)
    def called(
        *,
        cause: str | None,
        since: datetime | None,
        until: datetime | None,
        group: str | None,
        source_topic: str | None,
        source_partition: int | None,
        header: tuple[str, str] | None,
        offsets: dict[int, OffsetSet],
        **given: Any,
    ) -> None:
        selection = Selection(
            cause=cause,
            since=since,
            until=until,
            group=group,
            source_topic=source_topic,
            source_partition=source_partition,
            header=header,
            offsets=offsets,
        )
        command(selection=selection, **given)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called
