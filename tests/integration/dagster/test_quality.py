"""The asset checks on real dead letters: they pass on what was written, and fail on a broken copy of it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import dagster as dg
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from sharequeue.dagster.assets.dead_letters import dead_letters_asset, letters_wait, samples
from sharequeue.dagster.checks import NONE_HELD, dead_letter_checks
from sharequeue.dagster.quality.dead_letters import HEADERS
from sharequeue.dagster.quality.drift import drift_result
from sharequeue.dagster.quality.examination import RECONCILED
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.share_group import Drift
from sharequeue.dagster.state_checks import (
    AGE_BOUNDED,
    LAG_BOUNDED,
    checks_on_state,
)
from sharequeue.database import Database
from sharequeue.deadletters.browsing import browse
from sharequeue.deadletters.letters import (
    BATCH,
    DELIVERY_COUNT,
    GROUP,
    MESSAGE,
    MESSAGES,
    OFFSET,
    ORIGINAL_HEADER,
    SEQUENCE,
    DeadLetter,
)
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.local.stack import StackInfo
from sharequeue.reports.data_docs import context_folder, data_docs_address, read_file, site_folder
from tests import single
from tests.fixtures.dagster import share_group
from tests.fixtures.deadletters import GivenUp
from tests.fixtures.logs import add_partitions, delete_before
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

DEAD_LETTERS = dg.AssetKey("dead_letters")
LAG = dg.AssetKey("spso_and_lag")
UNIQUE = "source_coordinates_unique"
PARTITIONS = 3
DLQ_PARTITIONS = 2
RECORDS = 60
LIMIT = 5

Results = dict[str, dg.AssetCheckEvaluation]


class RunChecks(Protocol):
    """Runs the group's checks in Dagster: `only` some of them, `given` as the yaml says, config for the reading."""

    def __call__(
        self, only: Sequence[str] = (), given: dict[str, Any] | None = None, **config: object
    ) -> Results: ...


@pytest.fixture
def ours(given_up: Callable[..., GivenUp]) -> GivenUp:
    """Give a group over a topic of three partitions, with a dead-letter topic of two that takes copies."""
    return given_up(PARTITIONS, dlq_partitions=DLQ_PARTITIONS, copy=True)


@pytest.fixture
def run_checks(stack: StackInfo, ours: GivenUp, tmp_path: Path) -> RunChecks:
    """Give a function that runs checks of the group, and remembers what they found, as one deployment does."""
    instance = dg.DagsterInstance.ephemeral()

    def run(only: Sequence[str] = (), given: dict[str, Any] | None = None, **config: object) -> Results:
        settings = SettingsResource(home=str(stack.home))
        group = share_group(ours.group, topics=[ours.topic], **(given or {}))
        checks = dg.Definitions(
            assets=[dg.AssetSpec(DEAD_LETTERS), dg.AssetSpec(LAG)],
            asset_checks=[dead_letter_checks(group, DEAD_LETTERS, after=[]), checks_on_state(group, LAG)],
            jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())],
            resources={"sharequeue_settings": settings, "sharequeue_state": StateResource(settings=settings)},
        )
        selection = dg.AssetSelection.checks(*(dg.AssetCheckKey(DEAD_LETTERS, name) for name in only))
        job = checks.resolve_job_def("checks")
        if only:
            checks = dg.Definitions.merge(
                checks, dg.Definitions(jobs=[dg.define_asset_job("some", selection=selection)])
            )
            job = checks.resolve_job_def("some")
        op = f"{group.name}_dead_letter_suite"
        result = job.execute_in_process(
            instance=instance, run_config={"ops": {op: {"config": config}}} if config else None
        )
        return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}

    return run


@pytest.fixture
def letters(ours: GivenUp) -> list[DeadLetter]:
    """Give the group's dead letters: two of each partition rejected, three exhausted by releases, all written."""
    ours.configure(share_delivery_count_limit=str(LIMIT))
    ours.produce(RECORDS, partitions=PARTITIONS, headers=[("kind", b"refund")])
    ours.reject({partition: OffsetSet.of((2, 4)) for partition in range(PARTITIONS)})
    ours.produce(PARTITIONS, partitions=PARTITIONS)
    exhaust(ours)
    ours.writer().write()
    return ours.letters()


def exhaust(ours: GivenUp) -> None:
    """Release what is left of every partition until its deliveries are used up."""
    for partition, log in ours.topics.offsets(ours.topic).items():
        at = SharePartition(ours.group, ours.topic, partition)
        topic_id = ours.topics.describe([ours.topic])[ours.topic].topic_id
        single.observe(ours.state, at, topic_id, log.log_start, log.log_end, log.last_stable_offset)
        while (lease := single.acquire(ours.state, at, "member", None, 100)) is not None:
            single.acknowledge(ours.state, lease, {AcknowledgeType.RELEASE: lease.offsets})


def copy_to(settings: Settings, topic: str, letters: Iterable[DeadLetter]) -> None:
    """Write letters into another topic, each in its partition."""
    producer = Producer(client_config(settings))
    for letter in letters:
        producer.produce(
            topic, letter.value, letter.key, partition=letter.partition, headers=list(letter.headers)
        )
    assert producer.flush(PATIENCE_S) == 0


def with_header(letter: DeadLetter, name: str, content: bytes) -> DeadLetter:
    """The letter with another content of a header."""
    headers = tuple((key, content if key == name else value) for key, value in letter.headers)
    return dataclasses.replace(letter, headers=headers)


def without_headers(letter: DeadLetter, prefix: str) -> DeadLetter:
    """The letter without the headers that begin so."""
    headers = tuple(header for header in letter.headers if not header[0].startswith(prefix))
    return dataclasses.replace(letter, headers=headers)


def delete_letters_before(ours: GivenUp, offsets: dict[int, int]) -> None:
    """Move the log start of partitions of the dead-letter topic."""
    for partition, offset in offsets.items():
        delete_before(ours.settings, ours.dead_letter_topic, offset, partition)


def found_at(result: dg.AssetCheckEvaluation) -> list[tuple[object, object, object]]:
    """The source coordinates in a check's table."""
    table = result.metadata["found"]
    assert isinstance(table, dg.TableMetadataValue)
    return [
        (row.data["source_topic"], row.data["source_partition"], row.data["source_offset"])
        for row in table.records
    ]


def rows_of(result: dg.AssetCheckEvaluation, name: str) -> list[dict[str, object]]:
    """The rows of a table of a check's metadata."""
    table = result.metadata[name]
    assert isinstance(table, dg.TableMetadataValue)
    return [dict(row.data) for row in table.records]


def number(result: dg.AssetCheckEvaluation, name: str) -> object:
    """A number of a check's metadata."""
    return result.metadata[name].value


def failed(results: Results) -> set[str]:
    """The names of the checks that did not pass."""
    return {name for name, result in results.items() if not result.passed}


def test_real_dead_letters_pass_every_check(
    letters: list[DeadLetter],
    run_checks: RunChecks,
    ours: GivenUp,
    stack: StackInfo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the writer wrote satisfies the suite, agrees with Postgres, and leaves nothing held. The context is on
    disk with the suite, its checkpoint, the results and Data Docs. The checks link them at the service; without a
    service, their file."""
    assert len(letters) == 2 * PARTITIONS + PARTITIONS
    with monkeypatch.context() as without_service:
        # Another test may have started the service of these servers.
        without_service.setattr(
            Settings, "knows", lambda settings, name: name != "service_url" and bool(getattr(settings, name))
        )
        results = run_checks()
    assert failed(results) == set()
    assert len(results) == 19
    assert number(results[RECONCILED], "expected_records") == len(letters)
    assert number(results["value_as_source"], "not_compared_records") == 0
    folder = context_folder(ours.settings, ours.group) / "gx"
    suite = json.loads((folder / "expectations" / "built_in.json").read_text())
    assert {each["meta"]["check"] for each in suite["expectations"]} < set(results)
    assert (folder / "checkpoints" / "dead_letters.json").exists()
    assert list((folder / "uncommitted" / "validations").rglob("*.json"))
    site = site_folder(folder.parent)
    metadata = results["value_as_source"].metadata
    assert metadata["data_docs_file"] == dg.MetadataValue.path(site / "index.html")
    assert "data_docs" not in metadata
    found = read_file(site, "index.html")
    assert found is not None
    assert b"built_in" in found[0]
    # Without a button for it, no page opens with a tour.
    assert all(b"localStorage" not in page.read_bytes() for page in site.rglob("*.html"))
    monkeypatch.setenv("SHAREQUEUE_SERVICE_URL", "http://localhost:28080")
    metadata = run_checks(only=["value_as_source"])["value_as_source"].metadata
    address = data_docs_address(Settings.load(stack.home), ours.group)
    assert metadata["data_docs"] == dg.MetadataValue.url(address)
    assert "data_docs_file" not in metadata


def test_each_altered_letter_fails_its_own_check(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, make_topic: MakeTopic
) -> None:
    """A copy in which one letter each has another value, key, delivery count, cause, header of the record, or lacks
    our headers or its group: each check fails for that letter alone, with its place and a command."""
    altered = make_topic(DLQ_PARTITIONS, name=f"{ours.dead_letter_topic}.altered")
    changed: dict[str, Callable[[DeadLetter], DeadLetter]] = {
        "value_as_source": lambda letter: dataclasses.replace(letter, value=b"value x"),
        "key_as_source": lambda letter: dataclasses.replace(letter, key=None),
        "delivery_count_as_archived": lambda letter: with_header(letter, DELIVERY_COUNT, b"4"),
        "cause_as_archived": lambda letter: with_header(
            letter, MESSAGE, MESSAGES["exhausted" if letter.cause == "rejected" else "rejected"].encode()
        ),
        "headers_as_source": lambda letter: without_headers(letter, ORIGINAL_HEADER),
        HEADERS: lambda letter: without_headers(letter, GROUP),
    }
    copies = [change(letter) for letter, change in zip(letters, changed.values(), strict=False)]
    bare = without_headers(dataclasses.replace(letters[6], value=b"y"), "sharequeue.dead.letter.")
    copy_to(ours.settings, altered, [*copies, bare, *letters[7:]])
    ours.configure(errors_deadletterqueue_topic_name=altered)
    results = run_checks()
    assert failed(results) == {*changed, RECONCILED}
    for letter, name in zip(letters, changed, strict=False):
        at = (ours.topic, letter.source_partition, letter.source_offset)
        assert at in found_at(results[name]), name
        assert results[name].severity == dg.AssetCheckSeverity.ERROR
        also = [letters[6]] if name == HEADERS else []
        assert len(found_at(results[name])) == 1 + len(also), name
    first = letters[3]
    record = f"{ours.topic}-{first.source_partition}@{first.source_offset}"
    assert f"1 letter fails; first record {record}: cause: " in str(results["cause_as_archived"].description)
    headers = rows_of(results[HEADERS], "headers")
    assert [(row["header"], row["problem"], row["letters"]) for row in headers] == [
        (GROUP, "missing", 1),
        (BATCH, "missing", 1),
        (SEQUENCE, "missing", 1),
    ]
    commands = {
        row["command"]
        for name in (HEADERS, RECONCILED)
        for row in rows_of(results[name], "found")
        if row["source_partition"] == letters[6].source_partition
        and row["source_offset"] == letters[6].source_offset
        and row["dlq_offset"] is not None
    }
    (command,) = commands
    assert str(command).startswith(f"sharequeue dlq show {altered} ")
    reconciled = results[RECONCILED]
    assert (number(reconciled, "invented_records"), number(reconciled, "missing_records")) == (1, 1)
    table = results["delivery_count_as_archived"].metadata["found"]
    assert isinstance(table, dg.TableMetadataValue)
    (row,) = table.records
    assert row.data["command"] == (
        f"sharequeue dlq redrive {altered} --offsets {row.data['dlq_partition']}:{row.data['dlq_offset']}"
    )
    assert "deliveries: 4.0" in str(row.data["found"])


@pytest.mark.deep
def test_a_changed_batch_header_hides_no_difference(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, make_topic: MakeTopic
) -> None:
    """What it must be is known from Postgres. The copy is compared all the same."""
    altered = make_topic(DLQ_PARTITIONS, name=f"{ours.dead_letter_topic}.batch")
    first, second = (with_header(letter, BATCH, b"0" * 32) for letter in letters[:2])
    copy_to(ours.settings, altered, [dataclasses.replace(first, value=b"x"), second, *letters[2:]])
    ours.configure(errors_deadletterqueue_topic_name=altered)
    results = run_checks()
    assert failed(results) == {"batch_as_archived", "value_as_source"}
    assert number(results["batch_as_archived"], "unexpected_records") == 2
    assert number(results["value_as_source"], "not_compared_records") == 0


def test_letters_of_a_topic_that_was_made_again_twice_pass(run_checks: RunChecks, ours: GivenUp) -> None:
    """Which id the topic had when a batch was written is known, so their batch header is judged too. Their originals
    are gone."""
    for number_of_topic in range(3):
        if number_of_topic:
            ours.topics.delete(ours.topic)
            topic_id = ours.topics.create(ours.topic, 1).topic_id
            at = SharePartition(ours.group, ours.topic, 0)
            ours.state.initialize(at, topic_id, 0, 1)
            ours.database.rows(
                sa.text("select sharequeue.alter_offsets(:group, :topic, 0, :topic_id, 0)"),
                group=ours.group,
                topic=ours.topic,
                topic_id=topic_id,
            )
        ours.produce(2)
        ours.reject()
        ours.writer().write()
    results = run_checks()
    assert failed(results) == set()
    assert number(results["batch_as_archived"], "group_records") == 6
    assert number(results["value_as_source"], "not_compared_records") == 4


def test_a_deleted_group_leaves_no_findings_to_a_later_one(run_checks: RunChecks, ours: GivenUp) -> None:
    """The batches of the later group of the same name are numbered from 1 again: their letters are not doubles of
    those that the checks have read before."""
    ours.produce(6)
    ours.reject()
    ours.writer().write()
    copy_to(ours.settings, ours.dead_letter_topic, ours.letters()[:1])
    assert failed(run_checks()) == {RECONCILED, "source_coordinates_unique"}
    configs = GroupConfigs.load(ours.database, ours.group)
    ours.state.administration.delete_group(ours.group)
    alter_group_configs(ours.database, ours.group, {name: configs.values[name] for name in configs.own})
    ours.reject()
    ours.writer().write()
    results = run_checks()
    assert failed(results) == set()
    assert number(results[RECONCILED], "deleted_group_records") == 7
    assert number(results[RECONCILED], "group_records") == 13


@pytest.mark.deep
def test_old_letters_pass_after_the_topic_has_grown(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp
) -> None:
    """They are in the partition that was right for fewer partitions; what comes now is in another one."""
    add_partitions(ours.topics, ours.dead_letter_topic, DLQ_PARTITIONS + 1)
    ours.produce(PARTITIONS, partitions=PARTITIONS)
    ours.reject()
    ours.writer().write()
    assert {letter.partition for letter in ours.letters() if letter.source_partition == 2} == {0, 2}
    results = run_checks()
    assert failed(results) == set()
    assert number(results[RECONCILED], "expected_records") == len(letters) + PARTITIONS
    delete_letters_before(ours, {0: ours.topics.offsets(ours.dead_letter_topic)[0].log_end})
    assert failed(run_checks(full=True)) == set()


@pytest.mark.deep
def test_letters_left_for_lack_of_time_are_read_by_the_next_run(
    letters: list[DeadLetter],
    run_checks: RunChecks,
    ours: GivenUp,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where originals take too long to read, each run reads some letters, and none is passed over."""
    altered = make_topic(DLQ_PARTITIONS, name=f"{ours.dead_letter_topic}.late")
    copy_to(ours.settings, altered, (dataclasses.replace(letter, value=b"x") for letter in letters))
    ours.configure(errors_deadletterqueue_topic_name=altered)
    monkeypatch.setattr("sharequeue.dagster.quality.examination.CHUNK_LETTERS", 4)
    monkeypatch.setattr("sharequeue.dagster.quality.examination.COMPARE_SECONDS", 0.0)
    only = ["value_as_source", RECONCILED]
    reads = [run_checks(only) for _ in range(3)]
    assert [number(results[RECONCILED], "read_records") for results in reads] == [4, 4, 1]
    assert [number(results[RECONCILED], "left_offsets") for results in reads] == [5, 1, 0]
    assert failed(reads[-1]) == {"value_as_source"}
    assert number(reads[-1]["value_as_source"], "unexpected_records") == len(letters)


@pytest.mark.deep
def test_letters_without_any_header_of_ours_are_found(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, make_topic: MakeTopic
) -> None:
    """They then hold content without being copies, and the letters that Postgres knows are missing."""
    stripped = make_topic(DLQ_PARTITIONS, name=f"{ours.dead_letter_topic}.stripped")
    copy_to(ours.settings, stripped, [without_headers(letter, "sharequeue.") for letter in letters])
    ours.configure(errors_deadletterqueue_topic_name=stripped)
    results = run_checks()
    assert failed(results) == {HEADERS, "key_as_source", "value_as_source", RECONCILED}
    assert number(results[HEADERS], "unexpected_records") == len(letters)
    reconciled = results[RECONCILED]
    assert (number(reconciled, "invented_records"), number(reconciled, "missing_records")) == (9, 9)


@pytest.mark.deep
def test_a_missing_header_fails_as_an_error(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, make_topic: MakeTopic
) -> None:
    """A copy in which one record lacks its source offset fails that header's check and the reconciliation."""
    broken = make_topic(DLQ_PARTITIONS, name=f"{ours.dead_letter_topic}.headless")
    first, *others = letters
    copy_to(ours.settings, broken, [*others, without_headers(first, OFFSET)])
    ours.configure(errors_deadletterqueue_topic_name=broken)
    results = run_checks()
    assert failed(results) == {HEADERS, RECONCILED}
    assert results[HEADERS].severity == dg.AssetCheckSeverity.ERROR
    assert number(results[HEADERS], "unexpected_records") == 1


def test_lost_and_doubled_letters_stay_found(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, make_topic: MakeTopic
) -> None:
    """A copy without its first letter and with its last one twice. A later run reads nothing again and still fails;
    one that begins anew finds the same, until somebody accepts what was found, maybe for one check alone. A letter
    that is written once more, long after the first was read, is found too."""
    broken = make_topic(DLQ_PARTITIONS, name=f"{ours.dead_letter_topic}.doubled")
    copy_to(ours.settings, broken, [*letters[1:], letters[-1]])
    ours.configure(errors_deadletterqueue_topic_name=broken)
    results = run_checks()
    assert failed(results) == {UNIQUE, RECONCILED}
    reconciled = results[RECONCILED]
    assert (number(reconciled, "doubled_records"), number(reconciled, "missing_records")) == (1, 1)
    assert len(found_at(results[UNIQUE])) == 1
    lost, doubled = (
        (ours.topic, each.source_partition, each.source_offset) for each in (letters[0], letters[-1])
    )
    assert {*found_at(reconciled)} == {lost, doubled}
    results = run_checks()
    assert number(results[RECONCILED], "read_records") == 0
    assert failed(results) == {UNIQUE, RECONCILED}
    assert {*found_at(results[RECONCILED])} == {lost, doubled}
    assert (
        number(results[RECONCILED], "doubled_records"),
        number(results[UNIQUE], "unexpected_records"),
    ) == (1, 1)
    assert "1 doubled, 1 missing (2 of them found by earlier runs)" in str(results[RECONCILED].description)
    results = run_checks(full=True)
    assert failed(results) == {UNIQUE, RECONCILED}
    assert number(results[RECONCILED], "unexpected_records") == 2
    assert failed(run_checks(only=[UNIQUE], accept=True)) == set()
    assert failed(run_checks()) == {RECONCILED}
    assert failed(run_checks(accept=True)) == set()
    copy_to(ours.settings, broken, [letters[1]])
    results = run_checks()
    again = (ours.topic, letters[1].source_partition, letters[1].source_offset)
    assert failed(results) == {UNIQUE, RECONCILED}
    assert found_at(results[UNIQUE]) == found_at(results[RECONCILED]) == [again]
    assert failed(run_checks(accept=True)) == set()


def test_a_topic_that_groups_share_is_judged_by_group(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp
) -> None:
    """Letters of another group, and records that are no letters, are counted and not judged; so is a new limit."""
    other = ours.renamed(f"{ours.group}.other")
    other.configure(errors_deadletterqueue_copy_record_enable="false")
    other.reject({0: OffsetSet.of((0, 4))})
    other.writer().write()
    producer = Producer(client_config(ours.settings))
    producer.produce(ours.dead_letter_topic, b"no letter", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    ours.configure(share_delivery_count_limit=str(LIMIT + 2))
    results = run_checks()
    assert failed(results) == set()
    assert number(results[RECONCILED], "foreign_records") == 5
    assert number(results[RECONCILED], "group_records") == len(letters)


def test_letters_without_copies_need_no_content(run_checks: RunChecks, ours: GivenUp) -> None:
    """Kafka's default: letters have neither key nor value, and that is right. What another program's open transaction
    hides is not read, and named."""
    ours.configure(errors_deadletterqueue_copy_record_enable="false")
    ours.produce(RECORDS, partitions=PARTITIONS)
    ours.reject({partition: OffsetSet.of((2, 4)) for partition in range(PARTITIONS)})
    ours.writer().write()
    other = Producer(client_config(ours.settings, transactional_id=f"other-{ours.topic}"))
    other.init_transactions(PATIENCE_S)
    other.begin_transaction()
    other.produce(ours.dead_letter_topic, b"open", b"key", 0)
    other.flush(PATIENCE_S)
    results = run_checks()
    other.abort_transaction(PATIENCE_S)
    assert failed(results) == set()
    assert number(results["value_as_source"], "group_records") == 2 * PARTITIONS
    hidden = results["value_as_source"].metadata["hidden"].value
    assert f"1 offset of {ours.dead_letter_topic}-0" in str(hidden)


def test_letters_that_retention_removed_are_not_missing(run_checks: RunChecks, ours: GivenUp) -> None:
    """Of three batches of each source partition, the topic lost the first, and half of the second; then everything.
    What lies behind that must still be there."""
    for _ in range(3):
        ours.produce(4 * PARTITIONS, partitions=PARTITIONS)
        ours.reject()
        ours.writer().write()
    second = {
        partition: min(
            letter.offset
            for letter in ours.letters()
            if letter.partition == partition and letter.source_offset == 6
        )
        for partition in range(DLQ_PARTITIONS)
    }
    delete_letters_before(ours, second)
    left = len(ours.letters())
    assert 0 < left < 12 * PARTITIONS
    results = run_checks()
    assert failed(results) == set()
    assert number(results[RECONCILED], "expected_records") == left
    delete_letters_before(
        ours,
        {partition: log.log_end for partition, log in ours.topics.offsets(ours.dead_letter_topic).items()},
    )
    assert failed(run_checks(full=True)) == set()
    ours.produce(4 * PARTITIONS, partitions=PARTITIONS)
    ours.reject()
    ours.writer().write()
    results = run_checks()
    assert failed(results) == set()
    assert number(results[RECONCILED], "expected_records") == 4 * PARTITIONS


def test_the_checks_continue_where_the_last_run_ended(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound on letters leaves the rest for the next run; what came since is read, and nothing twice. A check that
    is executed alone reads for all of them. A run without a new letter says since when, and does without Great
    Expectations."""
    reads = [run_checks(max_letters=6) for _ in range(2)]
    assert [failed(results) for results in reads] == [set()] * 2
    assert [number(results[RECONCILED], "read_records") for results in reads] == [6, 3]
    assert sum(int(str(number(results[RECONCILED], "expected_records"))) for results in reads) == len(letters)
    ours.produce(PARTITIONS, partitions=PARTITIONS)
    ours.reject()
    assert letters_wait(ours.state, ours.group)
    ours.writer().write()
    assert not letters_wait(ours.state, ours.group)
    alone = run_checks(only=["cause_known"])
    assert list(alone) == ["cause_known"]
    assert number(alone["cause_known"], "read_records") == PARTITIONS
    assert "no new letters" not in str(alone["cause_known"].description)
    monkeypatch.setitem(sys.modules, "great_expectations", None)  # to import it would be an error
    results = run_checks()
    assert failed(results) == set()
    assert number(results[RECONCILED], "read_records") == 0
    assert str(results["cause_known"].description).startswith("no new letters since 2")
    assert results["cause_known"].metadata.keys() == alone["cause_known"].metadata.keys()


def test_a_suite_of_the_user_is_checked_beside_ours(
    letters: list[DeadLetter], run_checks: RunChecks, ours: GivenUp, tmp_path: Path
) -> None:
    """Each of its expectations is a check, by its own name or by one made of type and column."""
    suite = {
        "name": "mine",
        "expectations": [
            {
                "type": "expect_column_values_to_not_match_regex",
                "kwargs": {"column": "value", "regex": "value 4"},
            },
            {
                "type": "expect_column_values_to_be_between",
                "kwargs": {"column": "deliveries", "max_value": 2},
                "severity": "warning",
                "meta": {"check": "given_up_soon"},
            },
            {
                "type": "expect_column_values_to_be_between",
                "kwargs": {"column": "deliveries", "max_value": 2, "mostly": 0.1},
                "meta": {"check": "few_given_up_late"},
            },
        ],
    }
    path = tmp_path / "dlq_suite.json"
    path.write_text(json.dumps(suite))
    results = run_checks(given={"dead_letters": {"suite": str(path)}})
    assert failed(results) == {"given_up_soon"}
    assert results["column_values_to_not_match_regex_value"].passed
    assert results["given_up_soon"].severity == dg.AssetCheckSeverity.WARN
    assert number(results["given_up_soon"], "unexpected_records") == PARTITIONS
    assert (site_folder(context_folder(ours.settings, ours.group)) / "index.html").exists()


def test_held_dead_letters_warn(run_checks: RunChecks, ours: GivenUp) -> None:
    """Dead letters that are not written yet fail a check of severity WARN, and no other."""
    ours.produce(6)
    ours.reject()
    results = run_checks()
    assert failed(results) == {NONE_HELD}
    assert results[NONE_HELD].severity == dg.AssetCheckSeverity.WARN


def test_the_newest_letters_are_shown(
    ours: GivenUp, stack: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five of this group, the newest first, from behind letters of others; they say where each record came from."""
    # Not three seconds: none is left out for lack of time.
    monkeypatch.setattr(browse, "__kwdefaults__", {**(browse.__kwdefaults__ or {}), "seconds": 120.0})
    ours.produce(8)
    ours.reject()
    other = ours.renamed(f"{ours.group}.other")
    settings = SettingsResource(home=str(stack.home))
    queue = StateResource(settings=settings)

    def shown() -> list[dict[str, object]]:
        asset = dead_letters_asset(dg.AssetSpec(DEAD_LETTERS), share_group(ours.group))
        result = dg.materialize(
            [asset], resources={"sharequeue_settings": settings, "sharequeue_state": queue}
        )
        (event,) = result.get_asset_materialization_events()
        table = event.materialization.metadata["samples"]
        assert isinstance(table, dg.TableMetadataValue)
        return [dict(row.data) for row in table.records]

    rows = shown()
    newest = [f"{ours.topic}-0@{offset}" for offset in (7, 6, 5, 4, 3)]
    assert [row["record"] for row in rows] == newest
    by_offset = {letter.source_offset: letter for letter in ours.letters()}
    assert rows[0] == {
        "letter": f"{by_offset[7].partition}:{by_offset[7].offset}",
        "record": f"{ours.topic}-0@7",
        "cause": "rejected",
        "delivery_count": 1,
        "error": None,
        "key": "key 7",
        "value": "value 7",
        "trace": f"sharequeue trace {ours.topic} 0 7 --group {ours.group}",
    }
    other.produce(60)
    other.reject()
    other.writer().write()
    assert [row["record"] for row in shown()] == newest
    given = samples(ours.settings, ours.dead_letter_topic, other.group)["samples"]
    assert [row.data["record"] for row in given.records] == [
        f"{ours.topic}-0@{offset}" for offset in (67, 66, 65, 64, 63)
    ]


def test_without_a_broker_there_are_no_samples(ours: GivenUp) -> None:
    """Nothing fails, and a line says why."""
    away = ours.settings.replace(bootstrap_servers="127.0.0.1:1")
    found = samples(away, ours.dead_letter_topic, ours.group)
    assert found["samples"].records == []
    assert any(part in found["samples_remark"] for part in ("does not answer", "took longer than"))
    assert samples(away, "", ours.group)["samples_remark"] == "the topic does not exist"
    assert (
        "no topic" in samples(ours.settings, f"{ours.dead_letter_topic}.none", ours.group)["samples_remark"]
    )


def test_bounds_on_lag_and_age_warn(run_checks: RunChecks, ours: GivenUp) -> None:
    """Only where the yaml has a bound is there such a check; it warns when the bound is exceeded."""
    ours.produce(6)
    at = SharePartition(ours.group, ours.topic, 0)
    topic_id = ours.topics.describe([ours.topic])[ours.topic].topic_id
    ours.state.initialize(at, topic_id, 0, 1)
    single.observe(ours.state, at, topic_id, 0, 6, 6)
    results = run_checks(given={"checks": {"max_lag": 5, "max_age": "1h"}})
    assert failed(results) == {LAG_BOUNDED}
    assert "the lag is 6 offsets, more than 5" in str(results[LAG_BOUNDED].description)
    results = run_checks(given={"checks": {"max_lag": 6, "max_age": "0s"}})
    assert failed(results) == {AGE_BOUNDED}
    assert f"{ours.topic}-0 at offset 0" in str(results[AGE_BOUNDED].description)
    assert {"state_verified", "none_stuck"} <= set(run_checks())
    ours.topics.delete(ours.topic)
    results = run_checks(given={"checks": {"max_age": "0s"}})
    assert failed(results) == set()
    assert "the age in " in str(results[AGE_BOUNDED].description)


def test_lost_records_fail_a_check(run_checks: RunChecks, ours: GivenUp) -> None:
    """Retention removed four of six records: the check fails until somebody says that they are known."""
    at, topic_id = SharePartition(ours.group, ours.topic, 0), ours.topics.info(ours.topic).topic_id
    ours.state.initialize(at, topic_id, 0, 1)
    single.observe(ours.state, at, topic_id, 0, 6, 6)
    assert "none_lost" not in failed(run_checks())
    single.observe(ours.state, at, topic_id, 4, 6, 6)
    result = run_checks()["none_lost"]
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "4 records were removed by retention before they were processed" in str(result.description)
    assert "none_lost" not in failed(run_checks(given={"checks": {"max_lost": 4}}))


def test_a_change_from_the_week_before_is_reported(
    settings: Settings, private_database: Database, make_topic: MakeTopic
) -> None:
    """From what Postgres has as written: fifty letters a week ago, none in the last seven days."""
    source = make_topic(1)
    dlq = make_topic(1, name=f"dlq.{source}", errors_deadletterqueue_group_enable="true")
    case = GivenUp(settings, private_database, "weeks", source, dlq)
    case.configure(errors_deadletterqueue_topic_name=dlq, share_auto_offset_reset="earliest")
    case.produce(50)
    case.reject()
    case.writer().write()

    def result() -> dg.AssetCheckResult:
        return drift_result(private_database, "weeks", Drift(min_records=50), DEAD_LETTERS, "like_last_week")

    first = result()
    assert (first.passed, first.metadata["this_week_records"].value) == (True, 50)
    assert "no week before" in str(first.description)
    private_database.rows(sa.text("select sharequeue.set_clock_offset(interval '8 days')"))
    second = result()
    assert (second.passed, second.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert second.metadata["last_week_records"].value == 50
    assert second.description == "0 dead letters in the last seven days, 50 in the seven before"
    private_database.rows(sa.text("select sharequeue.set_clock_offset(interval '15 days')"))
    assert result().passed
