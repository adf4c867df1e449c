"""What must be true of every record in a dead-letter topic?

The headers are those of KIP-1191 (``__dlq.errors.*``, values UTF-8 text), the partition is the source
partition modulo the number of partitions of the dead-letter topic, and a record is dead-lettered once. The
frame keeps each header as the text that was read, so that a header that is missing or is no number is seen as
such, not repaired on the way. Whether the topic holds *all* the archived records is asked by ``reconcile``,
against Postgres.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharequeue.dagster.quality.expectations import Expectation
from sharequeue.deadletters.letters import (
    DELIVERY_COUNT,
    KAFKA_HEADERS,
    MESSAGES,
    OFFSET,
    PARTITION,
    DeadLetter,
)
from sharequeue.offsets import OffsetSet

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = r"^\d+$"
_COORDINATES = ["topic", "partition", "offset", "group"]


def frame(letters: Iterable[DeadLetter], dlq_partitions: int) -> "pd.DataFrame":
    """One row per record: each header as text (None when missing), and what is derived from them."""
    import pandas as pd

    rows = [_row(letter, dlq_partitions) for letter in letters]
    columns = [_column(header) for header in KAFKA_HEADERS]
    columns += ["dlq_partition", "expected_partition", "deliveries", "cause", "copied"]
    return pd.DataFrame(rows, columns=columns).astype(
        {"dlq_partition": "float", "expected_partition": "float", "deliveries": "float"}
    )


def expectations(group_id: str, delivery_count_limit: int) -> tuple[Expectation, ...]:
    """The suite of a group's dead-letter topic; the check's names do not depend on the arguments."""
    present = tuple(
        Expectation(
            check=f"header_{_column(header)}_present",
            description=f"Every record has the header {header}.",
            kind="ExpectColumnValuesToNotBeNull",
            arguments={"column": _column(header)},
        )
        for header in KAFKA_HEADERS
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
    return (
        *present,
        *parseable,
        Expectation(
            check="source_coordinates_unique",
            description="No source record was dead-lettered twice.",
            kind="ExpectCompoundColumnsToBeUnique",
            arguments={"column_list": _COORDINATES},
        ),
        Expectation(
            check="partition_follows_source",
            description="A record lies in the partition: source partition modulo the topic's partitions.",
            kind="ExpectColumnPairValuesToBeEqual",
            arguments={"column_A": "dlq_partition", "column_B": "expected_partition"},
        ),
        Expectation(
            check="cause_known",
            description="The message is one of the two causes of KIP-1191.",
            kind="ExpectColumnValuesToBeInSet",
            arguments={"column": "message", "value_set": list(MESSAGES.values())},
        ),
        Expectation(
            check="exceeded_reached_limit",
            description="A record that exceeded its delivery count was delivered up to the limit.",
            kind="ExpectColumnValuesToBeBetween",
            arguments={"column": "deliveries", "min_value": delivery_count_limit},
            only_if=("cause", "exceeded"),
        ),
        Expectation(
            check="group_is_ours",
            description="The records come from this share group.",
            kind="ExpectColumnValuesToBeInSet",
            arguments={"column": "group", "value_set": [group_id]},
        ),
        Expectation(
            check="value_copied",
            description="The source record's value was copied (only retention can have removed it).",
            kind="ExpectColumnValuesToBeInSet",
            arguments={"column": "copied", "value_set": ["yes"]},
            severity="warning",
        ),
    )


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The dead-letter topic against the archived records in Postgres, per source topic-partition."""

    archived: int
    written: int
    missing: dict[tuple[str, int], OffsetSet]
    invented: dict[tuple[str, int], OffsetSet]
    doubled: int

    @property
    def agrees(self) -> bool:
        """Nothing lost, nothing invented, nothing twice."""
        return not self.missing and not self.invented and not self.doubled


def reconcile(dead_letters: "pd.DataFrame", archived: dict[tuple[str, int], OffsetSet]) -> Reconciliation:
    """Holds the topic's records against ``archived``; a record whose coordinates cannot be read counts as
    invented nowhere and its source as missing, so a broken header shows up here too.
    """
    offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
    for topic, partition, offset in zip(
        dead_letters["topic"], dead_letters["partition"], dead_letters["offset"], strict=True
    ):
        if topic is not None and _is_number(partition) and _is_number(offset):
            offsets[topic, int(partition)].append(int(offset))
    written = {at: offset_set(values) for at, values in offsets.items()}
    everywhere = sorted({*written, *archived})
    empty = OffsetSet.of()
    lost = {at: archived.get(at, empty) - written.get(at, empty) for at in everywhere}
    extra = {at: written.get(at, empty) - archived.get(at, empty) for at in everywhere}
    distinct = sum(found.count for found in written.values())
    return Reconciliation(
        archived=sum(found.count for found in archived.values()),
        written=len(dead_letters),
        missing={at: found for at, found in lost.items() if found},
        invented={at: found for at, found in extra.items() if found},
        doubled=sum(len(values) for values in offsets.values()) - distinct,
    )


def offset_set(offsets: Iterable[int]) -> OffsetSet:
    """The set of single offsets, in any order and with repetitions."""
    values = sorted(set(offsets))
    return OffsetSet.from_runs(values, values)


def _column(header: str) -> str:
    return header.removeprefix("__dlq.errors.").replace(".", "_")


def _row(letter: DeadLetter, dlq_partitions: int) -> dict[str, object]:
    row: dict[str, object] = {_column(header): letter.header(header) for header in KAFKA_HEADERS}
    source, deliveries = letter.source_partition, letter.delivery_count
    return row | {
        "dlq_partition": letter.partition,
        "expected_partition": None if source is None else source % dlq_partitions,
        "deliveries": deliveries,
        "cause": letter.cause or "unknown",
        "copied": "no" if letter.value is None else "yes",
    }


def _is_number(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdigit()
