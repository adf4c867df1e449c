"""Show results as a short table of aligned text, for `print`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Removed", "Shown", "Table"]

MOST_ROWS = 10
"""The maximum number of rows shown. Of more rows, the last ones are shown."""

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a table, and remarks below it. Without rows, only the title and the remarks are shown."""

    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    remarks: Sequence[str | None] = ()
    """None is left out."""

    def text(self) -> str:
        """Return the table as lines of text, with numbers aligned to the right."""
        lines = [self.title]
        if self.rows:
            head, body = [name.upper() for name in self.columns], self._cells()
            widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
            lines += [
                "  ".join(
                    cell.rjust(width) if right else cell.ljust(width)
                    for cell, width, right in zip(row, widths, self._numeric(), strict=True)
                ).rstrip()
                for row in (head, *body)
            ]
        return "\n".join([*lines, *self._remarks()])

    def _cells(self) -> list[list[str]]:
        return [[_cell(value) for value in row] for row in self.rows[-MOST_ROWS:]]

    def _numeric(self) -> list[bool]:
        columns = zip(*self.rows, strict=True)
        return [any(isinstance(value, int | float) for value in column) for column in columns]

    def _remarks(self) -> list[str]:
        left_out = len(self.rows) - MOST_ROWS
        more = [f"({left_out:,} rows before these are not shown)"] if left_out > 0 else []
        return [*more, *(remark for remark in self.remarks if remark)]


class Shown:
    """A result that `print` shows as a table."""

    __slots__ = ()

    def table(self) -> Table:
        """Return the table to show."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.table().text()


class Removed(Shown, list[str]):
    """The folders that a sweep removed, or with `dry_run` would remove."""

    def __init__(self, names: Iterable[str] = (), *, dry_run: bool = False) -> None:
        super().__init__(names)
        self.dry_run = dry_run

    def table(self) -> Table:
        """Return a table with a row for each."""
        title = f"{'would remove' if self.dry_run else 'removed'} {len(self):,} outputs"
        return Table(title, ("output",), [(name,) for name in self])


def _cell(value: Cell) -> str:
    match value:
        case None:
            return "-"
        case str():
            return value
        case float():
            return f"{value:,.1f}"
        case _:
            return f"{value:,}"
