"""Move the staged rows of a lease into a table, and find those that the table refuses.

Usually one `insert … select` moves all rows. If the table refuses it, the rows are tried: the same insert for each
half of the records, of a half that is refused for its halves, and so on, until the refused records are alone. The
caller rolls a trial back. It shows the refused records with Postgres's words, or, if there are none, pieces that the
table accepts one after the other.

Constraints may be deferred. They are checked where they belong, at the end, unless that refuses something: then they
are checked after each insert, because the end does not name a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg2 import sql

from sharequeue.domain.offsets import MAX_OFFSET
from sharequeue.spark.sinks.postgres.copy import ATTEMPT, OFFSET, row_refusal
from sharequeue.spark.sinks.postgres.tables import Target

Piece = tuple[int, int]
"""The first and the last offset of an insert."""
WHOLE: Piece = (0, MAX_OFFSET)


class StagingLost(Exception):
    """Some or all staged rows of a lease are missing: Postgres crashed (staging tables are unlogged), or somebody
    removed them. Nothing was acknowledged; the records are delivered again.
    """


class RowLeftOut(Exception):
    """A trigger or a rule of the table did not insert a row, and raised no error."""


@dataclass(frozen=True, slots=True)
class StagedTrial:
    """What a table refuses of a lease, by offset, with the reasons; and pieces that it accepts."""

    reasons: dict[int, str] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The staged rows of a lease, with the table and the columns that they are moved to."""

    target: Target
    staging: str
    """The name of the staging table, which is in the target's schema."""
    columns: Sequence[str]
    attempts: Mapping[str, int]
    """The number of copied rows by attempt; other attempts do not count."""

    def move(self, cursor: Any, expected: int, pieces: Sequence[Piece] = (WHOLE,)) -> None:
        """Move the rows with one insert for each piece. Raises StagingLost if their number is not the expected one,
        RowLeftOut, and the error of Postgres.
        """
        if expected == 0:
            return
        moved = sum(self._insert(cursor, piece) for piece in pieces)
        if moved == sum(self.attempts.values()) == expected:
            return
        if self._count(cursor, WHOLE) == sum(self.attempts.values()) == expected:
            raise self._left_out(expected - moved)
        raise StagingLost(
            f"{expected} accepted rows were expected in {self.staging}, its tasks copied "
            f"{sum(self.attempts.values())}, and {moved} could be moved to {self._name}: nothing was acknowledged, "
            "and the records are delivered again. Either Postgres crashed, or somebody changed the staging table."
        )

    def tried(self, cursor: Any, refused: Mapping[int, str]) -> StagedTrial:
        """Return what the table refuses in addition to what is `refused` already. The caller rolls back; until then
        the table cannot be altered.
        """
        staging = self._staging
        # Not its partitions, which may be thousands. A rollback to a savepoint would release the lock of an insert.
        cursor.execute(sql.SQL("lock table only {} in row exclusive mode").format(self.target.identifier))
        cursor.execute(sql.SQL("create index on {} ({})").format(staging, sql.Identifier(OFFSET)))
        cursor.execute(
            sql.SQL("delete from {} where {} = any(%s)").format(staging, sql.Identifier(OFFSET)),
            (list(refused),),
        )
        cursor.execute(
            sql.SQL("select distinct {} from {} where {} = any(%s) order by 1").format(
                sql.Identifier(OFFSET), staging, sql.Identifier(ATTEMPT)
            ),
            (list(self.attempts),),
        )
        offsets = [offset for (offset,) in cursor.fetchall()]
        cursor.execute("savepoint sharequeue_trial")
        trial = StagedTrial(dict(refused))
        self._divide(cursor, offsets, trial)
        try:
            cursor.execute("set constraints all immediate")
        except psycopg2.Error as error:
            if self.refusal(error) is None:
                raise
            cursor.execute("rollback to savepoint sharequeue_trial")
            cursor.execute("set constraints all immediate")
            trial = StagedTrial(dict(refused))
            self._divide(cursor, offsets, trial)
        return trial

    def refusal(self, error: BaseException) -> str | None:
        """Return why the table refused a row; None for other errors."""
        if isinstance(error, RowLeftOut):
            return f"RowLeftOut: {error}"
        return row_refusal(error, row_security=self.target.row_security)

    def _divide(self, cursor: Any, offsets: Sequence[int], trial: StagedTrial) -> None:
        if not offsets:
            return
        piece = (offsets[0], offsets[-1])
        cursor.execute("savepoint sharequeue_piece")
        try:
            given = self._count(cursor, piece)
            if (moved := self._insert(cursor, piece)) != given:
                raise self._left_out(given - moved)
        except (psycopg2.Error, RowLeftOut) as error:
            words = self.refusal(error)
            if words is None:
                raise
            cursor.execute("rollback to savepoint sharequeue_piece")
            if len(offsets) == 1:
                trial.reasons[piece[0]] = words
                return
            half = len(offsets) // 2
            self._divide(cursor, offsets[:half], trial)
            self._divide(cursor, offsets[half:], trial)
        else:
            cursor.execute("release savepoint sharequeue_piece")
            trial.pieces.append(piece)

    def _insert(self, cursor: Any, piece: Piece) -> int:
        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        cursor.execute(
            sql.SQL("insert into {} ({}) select {} from {}").format(
                self.target.identifier, columns, columns, self._staging
            )
            + self._where(piece)
        )
        return int(cursor.rowcount)

    def _count(self, cursor: Any, piece: Piece) -> int:
        cursor.execute(sql.SQL("select count(*) from {}").format(self._staging) + self._where(piece))
        return int(cursor.fetchone()[0])

    def _where(self, piece: Piece) -> sql.Composable:
        # Literals, not parameters: with parameters, a percent sign in a column's name would be read as one.
        some = sql.SQL(" where {} = any (cast({} as text[]))").format(
            sql.Identifier(ATTEMPT), sql.Literal(list(self.attempts))
        )
        if piece == WHOLE:
            return some
        between = sql.SQL(" and {} between {} and {}")
        return some + between.format(sql.Identifier(OFFSET), *map(sql.Literal, piece))

    def _left_out(self, rows: int) -> RowLeftOut:
        return RowLeftOut(
            f"a trigger or a rule of table {self._name} did not insert the row, and raised no error ({rows} left out)"
        )

    @property
    def _name(self) -> str:
        return f"{self.target.schema}.{self.target.name}"

    @property
    def _staging(self) -> sql.Identifier:
        return sql.Identifier(self.target.schema, self.staging)
