"""Arrays that are sent as text."""

from __future__ import annotations

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.arrays import array_of_numbers, array_of_texts

TEXTS = ["orders", "", "NULL", "null", 'a "b"', "c\\d\\", "{e,f}", " g ", "h\n\ti", "ü😀", "%s :x ::y", "'"]


def test_postgres_reads_back_what_was_written(database: Database) -> None:
    """Whatever is in a text; and all numbers of an offset."""
    numbers = [0, -1, 2**63 - 1, -(2**63)]
    [row] = database.rows(
        sa.text("select cast(:texts as text[]) as texts, cast(:numbers as bigint[]) as numbers"),
        texts=array_of_texts(TEXTS),
        numbers=array_of_numbers(numbers),
    )
    assert (row["texts"], row["numbers"]) == (TEXTS, numbers)
