"""The expectations that hold for every letter of a group.

The headers are those of KIP-1191 (``__dlq.errors.*``, values UTF-8 text) and our own. The partition is the source
partition modulo a possible number of partitions of the dead-letter topic. Batch, cause and delivery count are
those that Postgres archived, and key, value and copied headers are those of the record. The frame keeps each header
as the text that was read.
``sharequeue.dagster.quality.reconciliation`` checks that the topic has *all* the archived records.
"""

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from sharequeue.dagster.quality.comparison import AS_EXPECTED, Compared, copied
from sharequeue.dagster.quality.expectations import Expectation
from sharequeue.dagster.quality.judging import Judged
from sharequeue.dagster.quality.reading import partitions_of
from sharequeue.deadletters.letters import (
    BATCH,
    DELIVERY_COUNT,
    EXCEPTION_CLASS,
    EXCEPTION_MESSAGE,
    KAFKA_HEADERS,
    MESSAGE,
    MESSAGES,
    OFFSET,
    PARTITION,
    SEQUENCE,
)
from sharequeue.words.record_bytes import text_of

if TYPE_CHECKING:
    import pandas as pd

HEADERS = "headers_valid"
UNIQUE = "source_coordinates_unique"
"""The checks of the headers, and of records that have several letters."""
REPEATED = "the record has a letter of this batch already"
_NUMBERED = (PARTITION, OFFSET, DELIVERY_COUNT)
_NUMBERS = ("dlq_partition", "dlq_offset", "expected_partition", "deliveries", "archived_deliveries")

COLUMNS = {
    **{
        header.removeprefix("__dlq.errors.").replace(".", "_"): f"the header `{header}`, as text"
        for header in KAFKA_HEADERS
    },
    "sequence": f"the header `{SEQUENCE}`, as text",
    "batch": f"the header `{BATCH}`, as text",
    "dlq_partition": "the partition of the letter",
    "dlq_offset": "its offset there",
    "written_at": "the time of writing, UTC",
    "header_problems": "the headers that are missing or not a number; else null",
    "repeated": f"`{REPEATED}`, or null",
    "expected_partition": "the partition in which it must be, or its own if that can be right",
    "deliveries": "the delivery count of the header, as a number",
    "archived_deliveries": "the delivery count in Postgres",
    "cause": "`rejected` or `exceeded`, by the message; else `unknown`",
    "archived_cause": "the cause in Postgres",
    "archived_batch": "the expected header `" + BATCH + "`, by what Postgres has",
    "standing": "`known` to Postgres, `invented`, `unplaced` (it does not have the position of its record), or "
    "`earlier`: of a group or source topic that has been deleted since",
    "copy": "the letter's own statement about its copy: `whole`, `missing`, `oversized`, or `none` if not requested",
    "key_found": f"the key against the record's: {', '.join(f'`{word}`' for word in AS_EXPECTED)}, or what is wrong",
    "value_found": "the same for the value",
    "headers_found": "the same for the copied headers",
    "key": "the key as text; bytes that are not UTF-8 are escaped",
    "value": "the value as text; bytes that are not UTF-8 are escaped",
    "exception_class": "the class of the handler's exception at the last delivery",
    "exception_message": "its message",
}
"""The columns of a batch, in order, with their meaning."""


def frame(
    judged: Sequence[Judged],
    compared: Sequence[Compared],
    dlq_partitions: int,
    repeated: Collection[Judged] = (),
) -> "pd.DataFrame":
    """Return one row per letter: each header as text (None if missing), and the derived columns.

    `repeated` are the letters of records whose batch has a letter for them already.
    """
    import pandas as pd

    places = {each.place for each in repeated}
    rows = [
        {**_row(each, found, dlq_partitions), "repeated": REPEATED if each.place in places else None}
        for each, found in zip(judged, compared, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(_NUMBERS, "float"))


def expectations() -> tuple[Expectation, ...]:
    """Return the suite of expectations for a group's letters."""
    as_source = tuple(
        Expectation(
            check=f"{part}_as_source",
            description=f"If a letter is a copy, its {part} {verb} the source record's, byte for byte, as far as "
            "the source still has it; otherwise it has none.",
            kind="ExpectColumnValuesToBeInSet",
            arguments={"column": f"{part}_found", "value_set": list(AS_EXPECTED)},
        )
        for part, verb in (("key", "is"), ("value", "is"), ("headers", "are"))
    )
    return (
        Expectation(
            check=HEADERS,
            description="Every letter has Kafka's headers, and Sharequeue's if Postgres has recorded it as written; "
            "partition, offset and delivery count are numbers.",
            kind="ExpectColumnValuesToBeNull",
            arguments={"column": "header_problems"},
        ),
        Expectation(
            check=UNIQUE,
            description="No batch has written a source record twice.",
            kind="ExpectColumnValuesToBeNull",
            arguments={"column": "repeated"},
        ),
        Expectation(
            check="partition_follows_source",
            description="A letter is in the partition: source partition modulo the number of partitions, the "
            "current one or a smaller one, because the topic may have grown.",
            kind="ExpectColumnPairValuesToBeEqual",
            arguments=_pair("dlq_partition", "expected_partition"),
        ),
        Expectation(
            check="cause_known",
            description="The message is one of the two causes of KIP-1191.",
            kind="ExpectColumnValuesToBeInSet",
            arguments={"column": "message", "value_set": list(MESSAGES.values())},
        ),
        Expectation(
            check="batch_as_archived",
            description="The letter's batch is the one that Postgres archived under its number.",
            kind="ExpectColumnPairValuesToBeEqual",
            arguments=_pair("batch", "archived_batch"),
        ),
        Expectation(
            check="cause_as_archived",
            description="The cause is the one that Postgres archived.",
            kind="ExpectColumnPairValuesToBeEqual",
            arguments=_pair("cause", "archived_cause"),
        ),
        Expectation(
            check="delivery_count_as_archived",
            description="The delivery count is the one that Postgres archived.",
            kind="ExpectColumnPairValuesToBeEqual",
            arguments=_pair("deliveries", "archived_deliveries"),
        ),
        *as_source,
        Expectation(
            check="copy_complete",
            description="If copies are enabled, the letter has the record: its source had it, and it fitted.",
            kind="ExpectColumnValuesToBeInSet",
            arguments={"column": "copy", "value_set": ["whole", "none"]},
            severity="warning",
        ),
    )


def header_problems(judged: Judged) -> tuple[tuple[str, str], ...]:
    """Return the headers of a letter that are wrong, each with the problem."""
    ours = (SEQUENCE, BATCH) if judged.standing == "known" else ()
    problems = []
    for header in (*KAFKA_HEADERS, *ours):
        text = judged.headers.get(header)
        if text is None:
            problems.append((header, "missing"))
        elif header in _NUMBERED and not _DIGITS.fullmatch(text):
            problems.append((header, "not a number"))
    return tuple(problems)


def _pair(first: str, second: str) -> dict[str, object]:
    return {"column_A": first, "column_B": second, "ignore_row_if": "either_value_is_missing"}


def _column(header: str) -> str:
    return header.removeprefix("__dlq.errors.").replace(".", "_")


def _row(judged: Judged, compared: Compared, dlq_partitions: int) -> dict[str, object]:
    letter, run, headers = judged.letter, judged.run, judged.headers
    source = _number(headers.get(PARTITION))
    return {
        **{column: headers.get(header) for header, column in _HEADERS.items()},
        "sequence": headers.get(SEQUENCE),
        "batch": headers.get(BATCH),
        "dlq_partition": letter.partition,
        "dlq_offset": letter.offset,
        "written_at": letter.timestamp,
        "header_problems": "; ".join(f"{header}: {problem}" for header, problem in header_problems(judged))
        or None,
        "expected_partition": None if source is None else _expected(source, letter.partition, dlq_partitions),
        "deliveries": _number(headers.get(DELIVERY_COUNT)),
        "archived_deliveries": None if run is None else run.delivery_count,
        "cause": _CAUSES.get(headers.get(MESSAGE) or "", "unknown"),
        "archived_cause": None if run is None else run.cause,
        "archived_batch": None if judged.batch is None else judged.batch.identity,
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
    return partition if partition in partitions_of(source, partitions) else source % dlq_partitions


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


_DIGITS = re.compile(r"\d+", re.ASCII)
_HEADERS = {header: _column(header) for header in KAFKA_HEADERS}
_CAUSES = {message: cause for cause, message in MESSAGES.items()}
