"""The suite on dead letters: what it lets pass and what it catches, on hand-made records."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import dagster as dg
import pytest

from sharequeue.dagster.quality import dead_letters
from sharequeue.dagster.quality.expectations import Verdict, check_specs, validate
from sharequeue.deadletters.letters import KAFKA_HEADERS, MESSAGES, DeadLetter
from sharequeue.offsets import OffsetSet

PREFIX = "__dlq.errors."
REJECTED, EXCEEDED = MESSAGES["rejected"], MESSAGES["exceeded"]
SUITE = dead_letters.expectations("flight-delays", 5)


def letter(
    offset: int,
    *,
    partition: int = 1,
    cause: str = REJECTED,
    count: int = 1,
    replaced: Mapping[str, str] = MappingProxyType({}),
) -> DeadLetter:
    """A well-formed record; ``replaced`` changes a header's text, and an empty text drops the header."""
    headers = {
        "topic": "flights",
        "partition": str(partition),
        "offset": str(offset),
        "group": "flight-delays",
        "delivery.count": str(count),
        "message": cause,
        **replaced,
    }
    return DeadLetter(
        partition=partition,
        offset=offset,
        key=None,
        value=b"{}",
        timestamp=None,
        headers=tuple((PREFIX + name, text.encode()) for name, text in headers.items() if text),
    )


def failures(*records: DeadLetter) -> set[str]:
    """The names of the checks that fail on these records."""
    verdicts = validate(dead_letters.frame(records, 4), "dlq", SUITE)
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    return {verdict.expectation.check for verdict in verdicts if not verdict.passed}


GOOD = (letter(1), letter(2, cause=EXCEEDED, count=5), letter(2, partition=3))


def test_well_formed_records_pass() -> None:
    """Complete headers, unique coordinates and the right partition satisfy every expectation."""
    assert failures(*GOOD) == set()


def test_an_empty_topic_passes() -> None:
    """No dead letters is no failure."""
    assert failures() == set()


@pytest.mark.parametrize("header", [name.removeprefix(PREFIX) for name in KAFKA_HEADERS])
def test_missing_header(header: str) -> None:
    """Each of the six headers is missed when it is absent."""
    name = header.replace(".", "_")
    assert f"header_{name}_present" in failures(*GOOD, letter(9, replaced={header: ""}))


@pytest.mark.parametrize("header", ["partition", "offset", "delivery.count"])
def test_unparseable_header(header: str) -> None:
    """A header that should be a number and is not fails its own check."""
    name = header.replace(".", "_")
    assert f"header_{name}_parseable" in failures(*GOOD, letter(9, replaced={header: "1x"}))


def test_doubled_record() -> None:
    """A record that was dead-lettered twice fails uniqueness and nothing else."""
    assert failures(*GOOD, GOOD[0]) == {"source_coordinates_unique"}


def test_wrong_partition() -> None:
    """A record in another partition than its source's modulo is found."""
    stray = replace(letter(7), partition=2)
    assert failures(*GOOD, stray) == {"partition_follows_source"}


def test_unknown_cause() -> None:
    """A message outside KIP-1191's two is found."""
    assert failures(*GOOD, letter(7, cause="because")) == {"cause_known"}


def test_exceeded_below_the_limit() -> None:
    """A record may end as exceeded only at the limit; a rejected one at any count."""
    assert failures(*GOOD, letter(7, cause=EXCEEDED, count=4)) == {"exceeded_reached_limit"}


def test_foreign_group() -> None:
    """A record of another share group is found."""
    assert failures(*GOOD, letter(7, replaced={"group": "other"})) == {"group_is_ours"}


def test_missing_value_only_warns() -> None:
    """A dead letter without a value fails a check of severity WARN."""
    bare = replace(letter(7), value=None)
    verdicts = validate(dead_letters.frame([bare], 4), "dlq", SUITE)
    (failed,) = [verdict for verdict in verdicts if not verdict.passed]
    assert failed.expectation.check == "value_copied"
    assert failed.to_check_result(dg.AssetKey("dead_letters")).severity == dg.AssetCheckSeverity.WARN


def test_one_spec_per_expectation() -> None:
    """The checks Dagster shows are the suite's expectations, by name."""
    specs = check_specs(dg.AssetKey("dead_letters"), SUITE)
    assert [spec.name for spec in specs] == [expectation.check for expectation in SUITE]


def test_critical_failure_is_an_error_with_examples() -> None:
    """A critical failure is ERROR and shows what was found."""
    verdict = Verdict(
        SUITE[0], passed=False, elements=3, unexpected_count=1, unexpected=("None",), problem=None
    )
    result = verdict.to_check_result(dg.AssetKey("dead_letters"))
    assert result.severity == dg.AssetCheckSeverity.ERROR
    assert result.metadata["unexpected_records"] == dg.MetadataValue.int(1)
    assert "1 of 3" in str(result.description)


def test_reconciliation_agrees() -> None:
    """The topic agrees with the state when both hold the same source offsets."""
    archived = {("flights", 1): OffsetSet.of((1, 3)), ("flights", 3): OffsetSet.of((2, 3))}
    assert dead_letters.reconcile(dead_letters.frame(GOOD, 4), archived).agrees


def test_reconciliation_finds_lost_invented_and_doubled() -> None:
    """Offsets only in the state are missing, offsets only in the topic invented, repetitions doubled."""
    archived = {("flights", 1): OffsetSet.of((1, 5))}
    found = dead_letters.reconcile(dead_letters.frame([*GOOD, GOOD[0]], 4), archived)
    assert found.missing == {("flights", 1): OffsetSet.of((3, 5))}
    assert found.invented == {("flights", 3): OffsetSet.of((2, 3))}
    assert found.doubled == 1
    assert not found.agrees
