"""The expectations that hold for every letter of a group.

The headers are those of KIP-1191 (``__dlq.errors.*``, values UTF-8 text) and our own. The partition is the source
partition modulo a possible number of partitions of the dead-letter topic. Batch, cause and delivery count are
those that Postgres archived, and key, value and copied headers are those of the record. The frame keeps each header
as the text that was read; the page "Check a queue in Dagster" lists its columns.
``sharequeue.dagster.quality.reconciliation`` checks that the topic has *all* the archived records.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from sharequeue.dagster.quality.comparison import AS_EXPECTED, Compared, copied
from sharequeue.dagster.quality.expectations import Expectation
from sharequeue.dagster.quality.judging import Judged
from sharequeue.deadletters.letters import (
    BATCH,
    DELIVERY_COUNT,
    EXCEPTION_CLASS,
    EXCEPTION_MESSAGE,
    KAFKA_HEADERS,
    MAX_DELIVERIES,
    MESSAGE,
    MESSAGES,
    OFFSET,
    PARTITION,
    SEQUENCE,
)
from sharequeue.domain.moments import moment_of
from sharequeue.domain.offsets import MAX_OFFSET, MAX_PARTITION
from sharequeue.domain.record_bytes import number_of, text_of

if TYPE_CHECKING:
    import pandas as pd

HEADERS = "headers_valid"
REPEATED = "the record has a letter of this batch already"
_NUMBERED = {PARTITION: MAX_PARTITION, OFFSET: MAX_OFFSET, DELIVERY_COUNT: MAX_DELIVERIES}
_NUMBERS = ("dlq_partition", "dlq_offset", "expected_partition", "deliveries", "archived_deliveries")
_HEADERS = {header: header.removeprefix("__dlq.errors.").replace(".", "_") for header in KAFKA_HEADERS}
_CAUSES = {message: cause for cause, message in MESSAGES.items()}


def expectations() -> tuple[Expectation, ...]:
    """Return the suite of expectations for a group's letters."""
    null, of_set = "ExpectColumnValuesToBeNull", "ExpectColumnValuesToBeInSet"
    as_source = (
        Expectation(
            f"{part}_as_source",
            f"If a letter is a copy, its {part} {verb} the source record's, byte for byte, as far as the source "
            "still has it; otherwise it has none.",
            of_set,
            {"column": f"{part}_found", "value_set": list(AS_EXPECTED)},
        )
        for part, verb in (("key", "is"), ("value", "is"), ("headers", "are"))
    )
    return (
        Expectation(
            HEADERS,
            "Every letter has Kafka's headers and Sharequeue's; partition, offset and delivery count are numbers.",
            null,
            {"column": "header_problems"},
        ),
        Expectation(
            "source_coordinates_unique",
            "No batch has written a source record twice.",
            null,
            {"column": "repeated"},
        ),
        _equal(
            "partition_follows_source",
            "A letter is in the partition: source partition modulo the number of partitions, the current one or a "
            "smaller one, because the topic may have grown.",
            "dlq_partition",
            "expected_partition",
        ),
        Expectation(
            "cause_known",
            "The message is one of the two causes of KIP-1191.",
            of_set,
            {"column": "message", "value_set": list(MESSAGES.values())},
        ),
        _equal(
            "batch_as_archived",
            "The letter's batch is the one that Postgres archived under its number.",
            "batch",
            "archived_batch",
        ),
        _equal(
            "cause_as_archived", "The cause is the one that Postgres archived.", "cause", "archived_cause"
        ),
        _equal(
            "delivery_count_as_archived",
            "The delivery count is the one that Postgres archived.",
            "deliveries",
            "archived_deliveries",
        ),
        *as_source,
        Expectation(
            "copy_complete",
            "If copies are enabled, the letter has the record: its source had it, and it fitted.",
            of_set,
            {"column": "copy", "value_set": ["whole", "none"]},
            severity="warning",
        ),
    )


def _equal(check: str, description: str, first: str, second: str) -> Expectation:
    columns = {"column_A": first, "column_B": second, "ignore_row_if": "either_value_is_missing"}
    return Expectation(check, description, "ExpectColumnPairValuesToBeEqual", columns)


def header_problems(judged: Judged) -> tuple[tuple[str, str], ...]:
    """Return the headers of a letter that are wrong, each with the problem."""
    ours = () if judged.standing == "earlier" else (SEQUENCE, BATCH)
    problems = []
    for header in (*KAFKA_HEADERS, *ours):
        text = judged.headers.get(header)
        if text is None:
            problems.append((header, "missing"))
        elif header in _NUMBERED and number_of(text, _NUMBERED[header]) is None:
            problems.append((header, "not a number"))
    return tuple(problems)


def frame(
    judged: Sequence[Judged],
    compared: Sequence[Compared],
    dlq_partitions: int,
    repeated: Collection[tuple[int, int]] = (),
) -> "pd.DataFrame":
    """Return one row per letter: each header as text (None if missing), and the derived columns.

    `repeated` are the places of letters of records whose batch has a letter for them already.
    """
    import pandas as pd

    rows = (
        {**_row(each, found, dlq_partitions), "repeated": REPEATED if each.place in repeated else None}
        for each, found in zip(judged, compared, strict=True)
    )
    return pd.DataFrame(rows).astype(dict.fromkeys(_NUMBERS, "float"))


def _row(judged: Judged, compared: Compared, dlq_partitions: int) -> Mapping[str, object]:
    letter, run, headers = judged.letter, judged.run, judged.headers
    problems = "; ".join(f"{header}: {problem}" for header, problem in header_problems(judged))
    source = number_of(headers.get(PARTITION), MAX_PARTITION)
    return {
        **{column: headers.get(header) for header, column in _HEADERS.items()},
        "sequence": headers.get(SEQUENCE),
        "batch": headers.get(BATCH),
        "dlq_partition": letter.partition,
        "dlq_offset": letter.offset,
        "written_at": None if letter.written_ms is None else moment_of(letter.written_ms),
        "header_problems": problems or None,
        "expected_partition": None if source is None else _expected(source, letter.partition, dlq_partitions),
        "deliveries": number_of(headers.get(DELIVERY_COUNT), MAX_DELIVERIES),
        "archived_deliveries": run and run.delivery_count,
        "cause": _CAUSES.get(headers.get(MESSAGE) or "", "unknown"),
        "archived_cause": run and run.cause,
        "archived_batch": judged.batch and judged.batch.identity,
        "standing": judged.standing,
        "copy": copied(headers),
        "key_found": compared.key,
        "value_found": compared.value,
        "headers_found": compared.headers,
        "key": text_of(letter.key, escaped=True),
        "value": text_of(letter.value, escaped=True),
        "exception_class": headers.get(EXCEPTION_CLASS),
        "exception_message": headers.get(EXCEPTION_MESSAGE),
    }


def _expected(source: int, partition: int, dlq_partitions: int) -> int:
    """Return the partition in which a letter must be.

    That is its own partition, if it is right for a number of partitions that the topic can have had.
    """
    partitions = max(dlq_partitions, partition + 1)  # it may have grown since the number was read
    return partition if partition in _partitions_of(source, partitions) else source % dlq_partitions


@lru_cache(maxsize=10_000)
def _partitions_of(source_partition: int, partitions: int) -> frozenset[int]:
    """Return the partitions of a dead-letter topic in which letters of a source partition may be.

    The topic's number of partitions only grows, so it was any from 1 to the current one when the letter was written.
    """
    return frozenset(source_partition % number for number in range(1, partitions + 1))
