"""What must be true of every letter of a group?

The headers are those of KIP-1191 (``__dlq.errors.*``, values UTF-8 text) and our own, the partition is the source
partition modulo a number of partitions that the dead-letter topic can have had, batch, cause and delivery count are
those that Postgres archived, and key, value and copied headers are those of the record. The frame keeps each header
as the text that was read, so that a header that is missing or is no number is seen as such, not repaired on the way.
Whether the topic holds *all* the archived records is ``sharequeue.deadletters.reconciliation``'s matter.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharequeue.dagster.quality.expectations import Expectation
from sharequeue.deadletters.comparison import AS_EXPECTED, Compared, copied
from sharequeue.deadletters.judging import Judged
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
from sharequeue.deadletters.reading import partitions_of

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = r"^\d+$"
_COORDINATES = ["topic", "partition", "offset", "group", "sequence"]
_NUMBERS = ("dlq_partition", "dlq_offset", "expected_partition", "deliveries", "archived_deliveries")

COLUMNS = {
    **{
        header.removeprefix("__dlq.errors.").replace(".", "_"): f"the header `{header}`, as text"
        for header in KAFKA_HEADERS
    },
    "sequence": f"the header `{SEQUENCE}`, as text",
    "batch": f"the header `{BATCH}`, as text",
    "dlq_partition": "the partition that the letter is in",
    "dlq_offset": "its offset there",
    "written_at": "when it was written, UTC",
    "expected_partition": "the partition that it must be in, or where it is, if that can have been right",
    "deliveries": "the delivery count of the header, as a number",
    "archived_deliveries": "the delivery count that Postgres has",
    "cause": "`rejected` or `exceeded`, by the message; else `unknown`",
    "archived_cause": "the cause that Postgres has",
    "archived_batch": "what the header `" + BATCH + "` must be, by what Postgres has",
    "standing": "`known` to Postgres, `invented`, `unplaced` (it does not say where its record lies), or `earlier`: "
    "of a group or source topic that was deleted since",
    "copy": "what the letter says of its copy: `whole`, `missing`, `oversized`, or `none` where none was asked for",
    "key_found": f"the key against the record's: {', '.join(f'`{word}`' for word in AS_EXPECTED)}, or what is wrong",
    "value_found": "the same for the value",
    "headers_found": "the same for the copied headers",
    "key": "the key as text, what is not UTF-8 escaped",
    "value": "the value as text, what is not UTF-8 escaped",
    "exception_class": "what the handler raised at the last delivery",
    "exception_message": "its message",
}
"""The columns of a batch, in their order, and what each holds."""


def frame(judged: Sequence[Judged], compared: Sequence[Compared], dlq_partitions: int) -> "pd.DataFrame":
    """One row per letter: each header as text (None when missing), and what is derived from them."""
    import pandas as pd

    rows = [_row(each, found, dlq_partitions) for each, found in zip(judged, compared, strict=True)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(_NUMBERS, "float"))


def expectations() -> tuple[Expectation, ...]:
    """The suite of a group's letters."""
    present = tuple(
        Expectation(
            check=f"header_{_column(header)}_present",
            description=f"Every letter has the header {header}.",
            kind="ExpectColumnValuesToNotBeNull",
            arguments={"column": _column(header)},
        )
        for header in KAFKA_HEADERS
    )
    own = tuple(
        Expectation(
            check=f"header_{column}_present",
            description=f"Every letter that Postgres has as written has the header {header}.",
            kind="ExpectColumnValuesToNotBeNull",
            arguments={"column": column},
            only_if=("standing", "known"),
        )
        for column, header in (("sequence", SEQUENCE), ("batch", BATCH))
    )
    parseable = tuple(
        Expectation(
            check=f"header_{_column(header)}_parseable",
            description=f"The header {header} is a number.",
            kind="ExpectColumnValuesToMatchRegex",
            arguments={"column": _column(header), "regex": _NUMBER},
        )
        for header in (PARTITION, OFFSET, DELIVERY_COUNT)
    )
    as_source = tuple(
        Expectation(
            check=f"{part}_as_source",
            description=f"Where a letter is a copy, its {part} {verb} the source record's, byte for byte, as far as "
            "the source still has it; else there is none.",
            kind="ExpectColumnValuesToBeInSet",
            arguments={"column": f"{part}_found", "value_set": list(AS_EXPECTED)},
            altered=True,
        )
        for part, verb in (("key", "is"), ("value", "is"), ("headers", "are"))
    )
    return (
        *present,
        *own,
        *parseable,
        Expectation(
            check="source_coordinates_unique",
            description="No batch has dead-lettered a source record twice.",
            kind="ExpectCompoundColumnsToBeUnique",
            arguments={"column_list": _COORDINATES, "ignore_row_if": "any_value_is_missing"},
            doubled=True,
        ),
        Expectation(
            check="partition_follows_source",
            description="A letter lies in the partition: source partition modulo the number of partitions, of "
            "today or any smaller one, as the topic may have grown.",
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
            description="The letter's batch is the one that Postgres has archived under its number.",
            kind="ExpectColumnPairValuesToBeEqual",
            arguments=_pair("batch", "archived_batch"),
            altered=True,
        ),
        Expectation(
            check="cause_as_archived",
            description="The cause is the one that Postgres has archived.",
            kind="ExpectColumnPairValuesToBeEqual",
            arguments=_pair("cause", "archived_cause"),
        ),
        Expectation(
            check="delivery_count_as_archived",
            description="The delivery count is the one that Postgres has archived.",
            kind="ExpectColumnPairValuesToBeEqual",
            arguments=_pair("deliveries", "archived_deliveries"),
        ),
        *as_source,
        Expectation(
            check="copy_complete",
            description="Where a copy was asked for, the letter holds the record: its source had it, and it fitted.",
            kind="ExpectColumnValuesToBeInSet",
            arguments={"column": "copy", "value_set": ["whole", "none"]},
            severity="warning",
        ),
    )


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
        "key": _text(letter.key),
        "value": _text(letter.value),
        "exception_class": headers.get(EXCEPTION_CLASS),
        "exception_message": headers.get(EXCEPTION_MESSAGE),
    }


def _expected(source: int, partition: int, dlq_partitions: int) -> int:
    """Where a letter must be: where it is, if it is right for a number of partitions that there can have been."""
    partitions = max(dlq_partitions, partition + 1)  # it may have grown since it was asked
    return partition if partition in partitions_of(source, partitions) else source % dlq_partitions


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="backslashreplace")


_HEADERS = {header: _column(header) for header in KAFKA_HEADERS}
_CAUSES = {message: cause for cause, message in MESSAGES.items()}
