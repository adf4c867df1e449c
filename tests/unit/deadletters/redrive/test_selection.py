"""Which letters a redrive takes, and what it makes of them: pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.redrive.selection import (
    REDRIVE_COUNT,
    LetterPosition,
    Selection,
    in_order,
    original_headers,
    redrive_count,
    redriven_headers,
)
from sharequeue.domain.moments import milliseconds_of
from sharequeue.domain.offsets import OffsetSet
from sharequeue.kafka.headers import Headers

WRITTEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
HEADERS: Headers = (
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"3"),
    ("__dlq.errors.offset", b"41"),
    ("__dlq.errors.group", b"billing"),
    ("__dlq.errors.delivery.count", b"5"),
    ("__dlq.errors.message", b"Offset delivery count exceeded the threshold."),
    ("sharequeue.original.timestamp", b"1700000000000"),
    ("sharequeue.original.header.kind", b"refund"),
    ("sharequeue.original.header.sharequeue.redrive.count", b"2"),
)
LETTER = DeadLetter(1, 7, b"key", b"value", HEADERS, milliseconds_of(WRITTEN))


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), True),
        (Selection(cause="exhausted"), True),
        (Selection(cause="rejected"), False),
        (Selection(since=WRITTEN), True),
        (Selection(since=WRITTEN + timedelta(seconds=1)), False),
        (Selection(until=WRITTEN), False),
        (Selection(until=WRITTEN + timedelta(seconds=1)), True),
        (Selection(group="billing", source_topic="orders", source_partition=3), True),
        (Selection(group="shipping"), False),
        (Selection(source_topic="orders", source_partition=2), False),
        (Selection(header=("kind", "refund")), True),
        (Selection(header=("kind", "sale")), False),
        (Selection(header=("sharequeue.original.header.kind", "refund")), True),
        (Selection(header=("__dlq.errors.offset", "41")), True),
        (Selection(offsets={1: OffsetSet.of((5, 8))}), True),
        (Selection(offsets={1: OffsetSet.of((8, 9)), 0: OffsetSet.of((7, 8))}), False),
    ],
)
def test_a_letter_is_taken_where_all_that_is_asked_for_is_so(selection: Selection, taken: bool) -> None:
    """Each criterion alone, and several together."""
    assert selection.takes(LETTER) is taken


def test_letters_go_in_the_order_of_their_sources() -> None:
    """Source by source, in batches of one partition of the dead-letter topic, whichever partitions a source's letters
    are in; one that does not name its source's partition has a place, too."""
    letters = [
        *(LetterPosition("orders", 0, at, 0, 90 - at) for at in range(5)),
        *(LetterPosition("orders", 2, at, 2 if at % 2 else 0, at) for at in range(3)),
        *(LetterPosition("orders", 1, at, 1, at) for at in range(2)),
    ]
    batches = [(partition, list(offsets.iter_offsets())) for partition, offsets in in_order(letters, 2)]
    assert batches == [
        *((0, [89, 90]), (0, [87, 88]), (0, [0, 86])),
        *((2, [1]), (0, [2]), (1, [0, 1])),
    ]
    nowhere = DeadLetter(1, 7, None, None, HEADERS[:1], milliseconds_of(WRITTEN))
    assert LetterPosition.of(nowhere) == ("orders", -1, -1, 1, 7, None)
    assert list(in_order([LetterPosition.of(LETTER), LetterPosition.of(nowhere)], 9)) == [
        (1, OffsetSet.of((7, 8)))
    ]


def test_the_record_gets_its_own_headers_back_with_a_count_and_its_origin() -> None:
    """What made the letter is left behind; the count goes on from the last redrive's."""
    assert redrive_count(original_headers(LETTER)) == 2
    assert redriven_headers(LETTER, "dlq.orders", original_headers(LETTER)) == [
        ("kind", b"refund"),
        ("sharequeue.redrive.count", b"3"),
        ("sharequeue.redrive.from", b"dlq.orders:1:7"),
    ]


@pytest.mark.parametrize(
    "count",
    [b"9" * 5000, b"1" * 10, "\u0663".encode(), "\u00b2".encode(), b" 3", b"+3", b"3_0", b"\xff", b""],
)
def test_a_count_that_no_redrive_has_written_is_ignored(count: bytes) -> None:
    """Any program may write the header: a text that is too long, or not of decimal digits, counts as none."""
    headers = ((REDRIVE_COUNT, count), (REDRIVE_COUNT, b"2"), (REDRIVE_COUNT, None))
    assert redrive_count(headers) == 2
    assert redrive_count(headers[:1]) == 0


def test_a_selection_says_what_it_asks_for() -> None:
    """For the audit, in words."""
    assert str(Selection()) == "all"
    assert str(Selection(cause="rejected", header=("kind", "sale"))) == "cause rejected, header kind=sale"
