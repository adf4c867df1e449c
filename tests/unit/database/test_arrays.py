"""Arrays as text."""

from __future__ import annotations

from sharequeue.database.arrays import array_of_numbers, array_of_texts


def test_numbers_are_written_as_postgres_reads_them() -> None:
    """Also none of them, negative ones, and the largest offset."""
    assert array_of_numbers(()) == "{}"
    assert array_of_numbers((-1, 0, 2**63 - 1)) == "{-1,0,9223372036854775807}"


def test_each_text_stands_in_quotation_marks() -> None:
    """What an array's text is made of is itself inside one."""
    assert array_of_texts(()) == "{}"
    assert array_of_texts(("a", "", 'say "b"', "c\\d", "{e,f}")) == r'{"a","","say \"b\"","c\\d","{e,f}"}'
