"""What a dead letter says, what is copied of its original, and what a broken one reads as."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharequeue.deadletters.letters import (
    KAFKA_HEADERS,
    DeadLetter,
    Letter,
    LetterWriting,
    RecordCopy,
    letters_of,
    record_bytes,
    without_content,
)
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import DeadLetterBatch, DeadLetterRun, SharePartition
from sharequeue.kafka.reading import passes

BATCH = DeadLetterBatch(
    SharePartition("gruppe-ü", "flights", 3),
    7,
    "topic-id",
    (
        DeadLetterRun(5, "exhausted", OffsetSet.of((2, 3), (8, 9))),
        DeadLetterRun(1, "rejected", OffsetSet.of((1, 2), (5, 7))),
    ),
)


def letter(*headers: tuple[str, bytes | None]) -> DeadLetter:
    return DeadLetter(0, 0, None, None, headers, None)


@pytest.mark.rule("R-DL-8")
def test_headers_are_kafkas_six_in_order_then_ours() -> None:
    """The six headers are Kafka 4.4's to the byte, UTF-8, in its order, and stand in front of ours."""
    headers = LetterWriting(BATCH).headers(Letter(8, 5, "exhausted"), [("sharequeue.more", b"x")])
    assert headers[:6] == [
        ("__dlq.errors.topic", b"flights"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"8"),
        ("__dlq.errors.group", "gruppe-ü".encode()),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", b"Offset delivery count exceeded the threshold."),
    ]
    assert tuple(name for name, _ in headers[:6]) == KAFKA_HEADERS
    assert all(name.startswith("sharequeue.") for name, _ in headers[6:])
    assert dict(headers)["sharequeue.dead.letter.sequence"] == b"7"
    assert dict(headers)["sharequeue.source.topic.id"] == b"topic-id"
    assert headers[-1] == ("sharequeue.more", b"x")


def test_letters_without_copies_have_the_same_headers_in_the_same_order() -> None:
    """The one dict that all of them share says of each letter what its own list does, where what is told of
    neighbours is the same and where it is not."""
    alike, other = (
        (("sharequeue.run.id", b"r1"),),
        (("sharequeue.run.id", b"r2"), ("sharequeue.member.id", b"m")),
    )
    writing = LetterWriting(BATCH, lambda offset: {5: other, 8: ()}.get(offset, alike))
    wanted = OffsetSet.of((2, 9))
    shared = [list(headers.items()) for headers in writing.without_copies(wanted)]
    assert shared == [writing.headers(each) for each in letters_of(BATCH, wanted)]
    assert len(shared) == 4


def test_a_rejected_record_says_so_in_kafkas_words() -> None:
    """The other of Kafka's two messages."""
    headers = dict(LetterWriting(BATCH).headers(Letter(5, 1, "rejected")))
    assert headers["__dlq.errors.message"] == b"Offset rejected by client."


def test_letters_come_by_offset_whatever_their_cause() -> None:
    """Runs of several causes and counts are merged into one ascending sequence; what is not wanted is left out."""
    everything = OffsetSet.of((0, 100))
    assert [(x.offset, x.delivery_count) for x in letters_of(BATCH, everything)] == [
        (1, 1),
        (2, 5),
        (5, 1),
        (6, 1),
        (8, 5),
    ]
    assert [x.offset for x in letters_of(BATCH, OffsetSet.of((2, 6)))] == [2, 5]


def test_the_identity_is_of_the_batch_alone() -> None:
    """Every attempt at a batch has the same identity; another sequence, topic id, group, content or time: another."""
    others = [
        replace(BATCH, sequence=8),
        replace(BATCH, topic_id="made-again"),
        replace(BATCH, share_partition=SharePartition("other", "flights", 3)),
        replace(BATCH, letters=BATCH.letters[:1]),
        replace(BATCH, opened_at=datetime(2026, 1, 1, tzinfo=UTC)),
    ]
    assert replace(BATCH).identity == BATCH.identity
    assert len({batch.identity for batch in [BATCH, *others]}) == 6


def test_a_letter_is_parsed() -> None:
    """What was written is read back as numbers and text."""
    read = letter(*LetterWriting(BATCH).headers(Letter(8, 5, "exhausted")))
    assert (read.source_topic, read.source_partition, read.source_offset) == ("flights", 3, 8)
    assert (read.group, read.delivery_count, read.cause) == ("gruppe-ü", 5, "exhausted")


def test_a_broken_letter_is_read_all_the_same() -> None:
    """Missing, null, undecodable and non-numeric headers are None, never an error."""
    broken = letter(
        ("__dlq.errors.topic", None), ("__dlq.errors.offset", b"many"), ("__dlq.errors.message", b"\xff\xfe")
    )
    assert (broken.source_topic, broken.source_partition, broken.source_offset) == (None, None, None)
    assert (broken.group, broken.delivery_count, broken.message, broken.cause) == (None, None, None, None)


@pytest.mark.parametrize("text", ["9" * 5000, "-1", " 5", "+5", "1_0", "\u0663", "2147483648", "9" * 20])
def test_an_impossible_number_in_a_header_is_ignored(text: str) -> None:
    """A partition, an offset or a count of deliveries that no broker has written is not taken for one."""
    read = letter(
        ("__dlq.errors.partition", text.encode()),
        ("__dlq.errors.offset", text.encode() * 2),
        ("__dlq.errors.delivery.count", text.encode()),
    )
    assert (read.source_partition, read.source_offset, read.delivery_count) == (None, None, None)
    assert letter(("__dlq.errors.partition", b"2147483647")).source_partition == 2**31 - 1


def test_of_doubled_headers_the_first_counts() -> None:
    """Kafka allows a header name twice; the first is the writer's own."""
    assert letter(("__dlq.errors.offset", b"1"), ("__dlq.errors.offset", b"2")).source_offset == 1


def test_an_oversized_copy_keeps_only_its_timestamp() -> None:
    """Key, value and headers go; that it was too large is said."""
    copy = RecordCopy(
        b"k", b"v", (("sharequeue.original.timestamp", b"1"), ("sharequeue.original.header.h", b"x"))
    )
    left = without_content(copy)
    assert (left.key, left.value) == (None, None)
    assert left.headers == (("sharequeue.original.timestamp", b"1"), ("sharequeue.record.oversized", b"true"))


def test_the_size_of_a_record_is_not_underestimated() -> None:
    """Content, names and framing all count."""
    assert (
        record_bytes(b"k" * 10, b"v" * 100, [("name", b"x" * 50), ("none", None)])
        >= 61 + 10 + 100 + 4 + 50 + 4
    )


@pytest.mark.parametrize(
    ("near", "expected"), [(0, [(0, 2), (5, 6), (100, 101)]), (3, [(0, 6), (100, 101)]), (94, [(0, 101)])]
)
def test_near_ranges_are_read_in_one_pass(near: int, expected: list[tuple[int, int]]) -> None:
    """Holes up to the bound are read over, wider ones are sought over."""
    assert passes(OffsetSet.of((0, 2), (5, 6), (100, 101)), near) == expected


@given(st.sets(st.integers(0, 400), min_size=1), st.integers(0, 50))
def test_passes_cover_every_offset_once(offsets: set[int], near: int) -> None:
    """Passes are disjoint and ascending, cover everything, and over-read no hole wider than the bound."""
    wanted = OffsetSet.from_offsets(offsets)
    found = passes(wanted, near)
    assert all(left[1] < right[0] for left, right in pairwise(found))
    assert wanted - OffsetSet.of(*found) == OffsetSet()
    assert all(end - first <= near for first, end in (OffsetSet.of(*found) - wanted).ranges)
