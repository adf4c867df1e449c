"""The asset checks on real dead letters: they pass on what was written, and fail on a broken copy of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import dagster as dg
import pytest
from confluent_kafka import Producer

from sharequeue.dagster.checks import NONE_HELD, RECONCILED, dead_letter_checks, state_checks
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.deadletters.letters import OFFSET
from sharequeue.deadletters.writer import DeadLetter
from sharequeue.kafka.clients import client_config
from sharequeue.local.stack import StackInfo
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.values import AcknowledgeType, SharePartition
from tests.fix_dagster import share_group
from tests.fix_deadletters import GivenUp
from tests.fix_stack import MakeTopic

DEAD_LETTERS = dg.AssetKey("dead_letters")
LAG = dg.AssetKey("spso_and_lag")
PARTITIONS = 3
DLQ_PARTITIONS = 2
RECORDS = 60
LIMIT = 5

RunChecks = Callable[[], dict[str, dg.AssetCheckEvaluation]]


@pytest.fixture
def ours(given_up: Callable[..., GivenUp]) -> GivenUp:
    """Give a group over a topic of three partitions, with a dead-letter topic of two that takes copies."""
    return given_up(PARTITIONS, dlq_partitions=DLQ_PARTITIONS, copy=True)


@pytest.fixture
def run_checks(stack: StackInfo, ours: GivenUp) -> RunChecks:
    """Give a function that runs all checks of the group in Dagster and gives the results by name."""

    def run() -> dict[str, dg.AssetCheckEvaluation]:
        settings = SettingsResource(home=str(stack.home))
        checks = dg.Definitions(
            assets=[dg.AssetSpec(DEAD_LETTERS), dg.AssetSpec(LAG)],
            asset_checks=[
                dead_letter_checks(share_group(ours.group), DEAD_LETTERS, after=[]),
                state_checks(share_group(ours.group), LAG),
            ],
            jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())],
            resources={"settings": settings, "queue": StateResource(settings=settings)},
        )
        result = checks.resolve_job_def("checks").execute_in_process()
        return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}

    return run


@pytest.fixture
def letters(ours: GivenUp) -> list[DeadLetter]:
    """Give the group's dead letters: two of each partition rejected, three exhausted by releases, all written."""
    ours.configure(share_delivery_count_limit=str(LIMIT))
    ours.produce(RECORDS, partitions=PARTITIONS)
    ours.reject({partition: OffsetSet.of((2, 4)) for partition in range(PARTITIONS)})
    ours.produce(PARTITIONS, partitions=PARTITIONS)
    exhaust(ours)
    ours.writer().drain()
    return ours.letters()


def exhaust(ours: GivenUp) -> None:
    """Release what is left of every partition until its deliveries are used up."""
    for partition, log in ours.topics.offsets(ours.topic).items():
        at = SharePartition(ours.group, ours.topic, partition)
        topic_id = ours.topics.describe([ours.topic])[ours.topic].topic_id
        ours.state.observe(at, topic_id, log.log_start, log.log_end, log.last_stable_offset)
        while (lease := ours.state.acquire(at, "member", None, 100)) is not None:
            ours.state.acknowledge(lease, {AcknowledgeType.RELEASE: lease.offsets})


def copy_to(settings: Settings, topic: str, letters: Iterable[DeadLetter]) -> None:
    """Write letters into another topic, each in its partition."""
    producer = Producer(client_config(settings))
    for letter in letters:
        producer.produce(
            topic, letter.value, letter.key, partition=letter.partition, headers=list(letter.headers)
        )
    assert producer.flush(30) == 0


def failed(results: dict[str, dg.AssetCheckEvaluation]) -> set[str]:
    """The names of the checks that did not pass."""
    return {name for name, result in results.items() if not result.passed}


def test_real_dead_letters_pass_every_check(letters: list[DeadLetter], run_checks: RunChecks) -> None:
    """What the writer wrote satisfies the suite, agrees with Postgres, and leaves nothing held."""
    assert len(letters) == 2 * PARTITIONS + PARTITIONS
    results = run_checks()
    assert failed(results) == set()
    assert len(results) == 19
    assert results[RECONCILED].metadata["archived_records"].value == len(letters)


def test_a_missing_header_fails_as_an_error(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, make_topic: MakeTopic
) -> None:
    """A copy in which one record lacks its source offset fails that header's check and the reconciliation."""
    broken = make_topic(DLQ_PARTITIONS, name=f"{ours.dead_letter_topic}.headless")
    first, *others = letters
    copy_to(ours.settings, broken, others)
    producer = Producer(client_config(ours.settings))
    headers: dict[str, str | bytes | None] = {name: value for name, value in first.headers if name != OFFSET}
    producer.produce(broken, first.value, first.key, partition=first.partition, headers=headers)
    assert producer.flush(30) == 0
    ours.configure(errors_deadletterqueue_topic_name=broken)
    results = run_checks()
    assert failed(results) == {"header_offset_present", RECONCILED}
    assert results["header_offset_present"].severity == dg.AssetCheckSeverity.ERROR
    assert results["header_offset_present"].metadata["unexpected_records"].value == 1


def test_a_doubled_record_fails_as_an_error(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, make_topic: MakeTopic
) -> None:
    """A copy in which one record stands twice fails uniqueness and the reconciliation."""
    broken = make_topic(DLQ_PARTITIONS, name=f"{ours.dead_letter_topic}.doubled")
    copy_to(ours.settings, broken, [*letters, letters[-1]])
    ours.configure(errors_deadletterqueue_topic_name=broken)
    results = run_checks()
    assert failed(results) == {"source_coordinates_unique", RECONCILED}
    assert results[RECONCILED].metadata["doubled_records"].value == 1


def test_a_lost_record_is_missed(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, make_topic: MakeTopic
) -> None:
    """A copy without one record satisfies the suite, but not the reconciliation, which names the offset."""
    broken = make_topic(DLQ_PARTITIONS, name=f"{ours.dead_letter_topic}.lost")
    copy_to(ours.settings, broken, letters[1:])
    ours.configure(errors_deadletterqueue_topic_name=broken)
    results = run_checks()
    assert failed(results) == {RECONCILED}
    apart = results[RECONCILED].metadata["apart"]
    assert isinstance(apart, dg.TableMetadataValue)
    (row,) = apart.records
    assert row.data["what"] == "missing"
    assert row.data["partition"] == letters[0].source_partition
    assert str(letters[0].source_offset) in str(row.data["offsets"])


def test_held_dead_letters_warn(run_checks: RunChecks, ours: GivenUp) -> None:
    """Dead letters that are not written yet fail a check of severity WARN, and no other."""
    ours.produce(6)
    ours.reject()
    results = run_checks()
    assert failed(results) == {NONE_HELD}
    assert results[NONE_HELD].severity == dg.AssetCheckSeverity.WARN
