"""The errors of outputs: for readers with Spark and without it, and for writers."""

from __future__ import annotations

from collections.abc import Collection

from sharequeue.domain.errors import PipelineError

MOST_NAMED = 10


class NotFiles(PipelineError):
    """The rows that a sink's manifest counts are not in files; the message names the location."""


class NoSuchSink(PipelineError):
    """Nothing was ever acknowledged with an output of this sink; the message names the existing sinks."""


class ColumnChanged(PipelineError):
    """A column has incompatible types in different folders; the message names it."""


class OutputNotReachable(PipelineError):
    """The output cannot be written to; the message has the reason and what to do. Nothing was leased, or the leases
    have been given back.
    """

    retriable = True


class OutputDamaged(OutputNotReachable):
    """Files of an output are missing, changed, or can no longer be read; the message names the leases."""


def changed(column: str, one: str, other: str) -> ColumnChanged:
    """Return the error for a column that has these types."""
    return ColumnChanged(
        f"column {column} is {one} in some folders and {other} in others: name the columns that you want with their "
        "types (`schema`), or read the folders separately"
    )


def damaged(named: str, reason: str) -> OutputDamaged:
    """Return the error for folders that count, and of which files are missing; `named` names them."""
    return OutputDamaged(
        f"files that count are missing or cannot be read: {named}. Somebody has removed or changed "
        "them. Nothing else was changed. Restore the folder from a backup, or create its rows again with a replay "
        "of the time or the offsets: its records were acknowledged, and are not delivered again. The error: "
        f"{reason}"
    )


def named_leases(lease_ids: Collection[int]) -> str:
    """Return a text such as: lease 7, or: leases 3, 4, 9 …"""
    some = ", ".join(map(str, sorted(lease_ids)[:MOST_NAMED]))
    more = " …" if len(lease_ids) > MOST_NAMED else ""
    return f"lease{'s' if len(lease_ids) > 1 else ''} {some}{more}"
