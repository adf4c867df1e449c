"""The result of merging a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["MergedSummary", "Plain"]

Plain = str | int | float | bool | None
"""A cell as JSON has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedSummary:
    """The partial sums of all leases that count, merged into one file."""

    summary: str
    """Its name."""
    path: str | None = None
    """The file; None if nothing was accepted yet: then there is no file."""
    uri: str | None = None
    rows: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns, and their types in Spark's words."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """The columns of `first_rows`, and Dagster's names of their types."""
    first_rows: Sequence[Sequence[Plain]] = ()

    def __str__(self) -> str:
        """Return it as a line of text."""
        where = "nothing was accepted yet" if self.path is None else self.path
        return f"summary {self.summary}: {self.rows:,} rows ({where})"
