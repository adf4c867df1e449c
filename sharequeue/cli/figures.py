"""The columns of commands that show figures, and their cells."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sharequeue.cli.output import Column, age, moment, number, text
from sharequeue.words.figures import Figure, GroupFigures, SharePartitionStatus, figures_of

_KINDS = {"text": text, "time": moment, "seconds": age}


def columns(kind: type) -> tuple[Column, ...]:
    """Return the columns of GroupFigures or SharePartitionStatus in the output of commands."""
    return tuple(
        _KINDS.get(each.unit, number)(each.command, wide=each.wide)
        for each in figures_of(kind)
        if each.command
    )


def names(*, ended: bool) -> Sequence[str]:
    """Return the names of a share-partition's columns on how records ended, or of the others."""
    return [each.command for each in figures_of(SharePartitionStatus) if each.command and each.ended is ended]


def key(figure: Figure) -> str:
    """Return the key of a figure's cell: of its column, or its own name if commands do not show it."""
    return Column(figure.command).key if figure.command else figure.name


def cells(row: GroupFigures | SharePartitionStatus) -> dict[str, Any]:
    """Return the figures of a group or a share-partition, by the keys of their cells."""
    kind: type = type(row)
    return {key(each): _cell(each, row) for each in figures_of(kind)}


def _cell(figure: Figure, row: GroupFigures | SharePartitionStatus) -> Any:
    value = getattr(row, figure.name)
    if figure.unit == "seconds" and value is not None:
        return timedelta(seconds=value)
    return round(value, 1) if figure.unit == "records/s" and value is not None else value
