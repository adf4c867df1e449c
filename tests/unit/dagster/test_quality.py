"""The suite on dead letters: what it lets pass and what it catches, on hand-made records."""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

from sharequeue.dagster import position, share_group_defs, share_group_resources
from sharequeue.dagster.quality import context, dead_letters
from sharequeue.dagster.quality.archived import ArchivedBatch
from sharequeue.dagster.quality.comparison import ABSENT, OTHER, Compared
from sharequeue.dagster.quality.context import REASON_CHARACTERS, QualityContext, Validator
from sharequeue.dagster.quality.dead_letters import HEADERS, header_problems
from sharequeue.dagster.quality.drift import changes_of
from sharequeue.dagster.quality.expectations import Expectation, SuiteUnreadable, suite_of
from sharequeue.dagster.quality.findings import BatchPosition, Found, KeptFindings, LetterFinding
from sharequeue.dagster.quality.judging import Judged, header_texts
from sharequeue.dagster.quality.reconciliation import Reconciliation, about
from sharequeue.dagster.share_group import Drift
from sharequeue.deadletters.letters import BATCH, KAFKA_HEADERS, MESSAGES, SEQUENCE, DeadLetter
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import DeadLetterRun, SharePartition
from sharequeue.kafka.topics import LogOffsets
from sharequeue.reports.data_docs import site_folder
from tests.fixtures.dagster import share_group

PREFIX = "__dlq.errors."
REJECTED, EXHAUSTED = MESSAGES["rejected"], MESSAGES["exhausted"]
SUITE = dead_letters.expectations()
NOTHING_COPIED = Compared(ABSENT, ABSENT, ABSENT)
DQ = "dead_letters"


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Validator]:
    """Give one context on disk for all tests of this module."""
    with QualityContext(tmp_path_factory.mktemp("gx"), SUITE).open() as opened:
        yield opened


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
        PREFIX + "topic": "flights",
        PREFIX + "partition": str(partition),
        PREFIX + "offset": str(offset),
        PREFIX + "group": "flight-delays",
        PREFIX + "delivery.count": str(count),
        PREFIX + "message": cause,
        SEQUENCE: "1",
        BATCH: "ab",
        **replaced,
    }
    return DeadLetter(
        partition=partition,
        offset=offset,
        key=None,
        value=None,
        written_ms=None,
        headers=tuple((name, text.encode()) for name, text in headers.items() if text),
    )


def archived(record: DeadLetter, *, cause: str = "rejected", count: int = 1) -> Judged:
    """The letter as Postgres knows it."""
    run = DeadLetterRun(count, cause, OffsetSet.of((0, 100)))
    now = datetime(2026, 5, 1, tzinfo=UTC)
    at = SharePartition("flight-delays", "flights", record.source_partition or 0)
    batch = ArchivedBatch(at, 1, "id", now, False, (run,))
    identity = {"ab": batch.identity.encode()}
    headers = tuple((name, identity.get((text or b"").decode(), text)) for name, text in record.headers)
    record = replace(record, headers=headers)
    return Judged(record, header_texts(record), "known", at, record.offset, 1, batch, run)


def failures(validator: Validator, *judged: Judged, compared: Compared = NOTHING_COPIED) -> set[str]:
    """The names of the checks that fail on these records."""
    repeated = {each.place for each in Reconciliation({}).add(judged)}
    frame = dead_letters.frame(judged, [compared] * len(judged), 4, repeated)
    found = validator.validate(frame, "unit", lambda row: about(judged[0], str(row)))
    assert set(found) == {expectation.check for expectation in SUITE}
    assert [each.problem for each in found.values() if each.problem] == []
    return {name for name, each in found.items() if each.counts}


GOOD = (
    archived(letter(1)),
    archived(letter(2, cause=EXHAUSTED, count=5), cause="exhausted", count=5),
    archived(letter(2, partition=3)),
)


def test_well_formed_records_pass(validator: Validator) -> None:
    """Complete headers, unique coordinates and the right partition satisfy every expectation."""
    assert failures(validator, *GOOD) == set()


def test_a_missing_header_fails_only_its_check(validator: Validator) -> None:
    """Each of the six headers, and of our two, is missed by the one check when it is absent."""
    names = [*KAFKA_HEADERS, SEQUENCE, BATCH]
    bare = [archived(letter(10 + at, replaced={name: ""})) for at, name in enumerate(names)]
    assert failures(validator, *GOOD, *bare) == {HEADERS, "cause_as_archived"}
    assert [header_problems(each) for each in bare] == [((name, "missing"),) for name in names]


def test_letters_of_a_deleted_group_need_no_header_of_ours(validator: Validator) -> None:
    """A broker's own share group of the same name may have written them."""
    record = letter(9, replaced={SEQUENCE: "", BATCH: ""})
    bare = Judged(record, header_texts(record), "earlier")
    assert failures(validator, *GOOD, bare) == set()


def test_an_unparseable_header_is_named(validator: Validator) -> None:
    """A header that should be a number and is not is named with its problem."""
    names = ["partition", "offset", "delivery.count"]
    broken = [archived(letter(9 + at, replaced={PREFIX + name: "1x"})) for at, name in enumerate(names)]
    assert failures(validator, *GOOD, *broken) == {HEADERS}
    assert [header_problems(each) for each in broken] == [
        ((PREFIX + name, "not a number"),) for name in names
    ]


def test_a_record_dead_lettered_twice_fails_uniqueness(validator: Validator) -> None:
    """A record that one batch dead-lettered twice fails uniqueness; given up again by a later batch, it does not."""
    assert failures(validator, *GOOD, GOOD[0]) == {"source_coordinates_unique"}
    later = archived(letter(1, replaced={SEQUENCE: "2"}))
    assert later.batch is not None
    later = replace(later, batch=replace(later.batch, sequence=2))
    letters = [*GOOD, later]
    assert Reconciliation({}).add(letters) == []
    earlier_run = {SharePartition("flight-delays", "flights", 1): BatchPosition(1, 50)}
    assert Reconciliation(earlier_run).add(letters) == [*GOOD[:2]]


def test_a_letter_in_the_wrong_partition_is_found(validator: Validator) -> None:
    """A record in another partition than its source's modulo is found."""
    stray = archived(replace(letter(7), partition=2))
    assert failures(validator, *GOOD, stray) == {"partition_follows_source"}


def test_a_partition_that_was_right_before_the_topic_grew(validator: Validator) -> None:
    """Of four partitions today: source partition 3 went to 1 when there were two, and never to 2."""
    old = archived(replace(letter(7, partition=3), partition=1))
    assert failures(validator, *GOOD, old) == set()
    stray = archived(replace(letter(7, partition=3), partition=2))
    assert failures(validator, *GOOD, stray) == {"partition_follows_source"}


def test_a_batch_header_other_than_archived_is_found(validator: Validator) -> None:
    """The header is known from Postgres."""
    assert failures(validator, *GOOD, archived(letter(7, replaced={BATCH: "cd"}))) == {"batch_as_archived"}


def test_an_unknown_cause_is_found(validator: Validator) -> None:
    """A message outside KIP-1191's two is found."""
    assert failures(validator, *GOOD, archived(letter(7, cause="because"))) == {
        "cause_known",
        "cause_as_archived",
    }


def test_a_count_or_cause_other_than_archived_is_found(validator: Validator) -> None:
    """What Postgres archived counts, not the limit of today."""
    broken = archived(letter(7, cause=EXHAUSTED, count=4), cause="exhausted", count=5)
    assert failures(validator, *GOOD, broken) == {"delivery_count_as_archived"}
    broken = archived(letter(7, cause=EXHAUSTED, count=5), cause="rejected", count=5)
    assert failures(validator, *GOOD, broken) == {"cause_as_archived"}


def test_content_other_than_in_the_source_is_found(validator: Validator) -> None:
    """Key, value and copied headers are each their own check."""
    assert failures(validator, *GOOD, compared=Compared(OTHER, ABSENT, ABSENT)) == {"key_as_source"}
    both = Compared(ABSENT, OTHER, OTHER)
    assert failures(validator, *GOOD, compared=both) == {"value_as_source", "headers_as_source"}


def test_a_copy_that_could_not_be_made_only_warns(validator: Validator) -> None:
    """A letter that says so fails a check of severity WARN."""
    bare = archived(letter(7, replaced={"sharequeue.record.missing": "true"}))
    assert failures(validator, bare) == {"copy_complete"}
    (spec,) = [each for each in SUITE if each.check == "copy_complete"]
    assert spec.severity == "warning"


def test_errors_block_only_where_that_is_asked_for() -> None:
    """There is one spec for each expectation; those of severity WARN never block."""
    names = [expectation.check for expectation in SUITE]
    for blocking in (False, True):
        defs = share_group_defs(share_group("orders", dead_letters={"blocking": blocking}))
        specs = {spec.name: spec for each in defs.asset_checks or () for spec in each.check_specs}
        assert {*names, "reconciled_with_state", "none_held", "like_last_week"} < {*specs}
        assert {specs[name].blocking for name in names if name != "copy_complete"} == {blocking}
        assert not specs["copy_complete"].blocking


def test_a_blocking_check_comes_before_what_it_blocks() -> None:
    """Where the yaml asks for it: the checks then do not wait for the reports, which wait for them."""
    defs = share_group_defs(share_group("orders", dead_letters={"blocking": True}))
    resources = share_group_resources()
    repository = dg.Definitions.merge(defs, resources).get_repository_def()
    steps = [step.name for step in repository.get_job("orders").nodes_in_topological_order]
    assert steps.index("orders_dead_letter_suite") < steps.index("orders_spso_and_lag")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object with a list `expectations`"),
        ('{"expectations": []}', "not empty"),
        ('{"expectations": [{"kwargs": {}}]}', "expectation 0 has no `type`"),
        ('{"expectations": [{"type": "expect_x", "severity": "bad"}]}', "critical, warning, info"),
        (
            '{"expectations": [{"type": "expect_table_columns_to_match_set", "kwargs": {"column_set": ["a"]}},'
            ' {"type": "expect_table_columns_to_match_set", "kwargs": {"column_set": ["b"]}}]}',
            "two expectations have the name 'table_columns_to_match_set'",
        ),
        (
            '{"expectations": [{"type": "expect_column_values_to_not_be_nul", "kwargs": {"column": "a"}}]}',
            "no `expect_column_values_to_not_be_nul`. Did you mean expect_column_values_to_not_be_null",
        ),
        (
            '{"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"colum": "a"}}]}',
            "`expect_column_values_to_not_be_null` has no keyword 'colum'. Did you mean column?",
        ),
        (
            '{"expectations": [{"type": "expect_column_values_to_not_be_null"}]}',
            "`expect_column_values_to_not_be_null` needs column in `kwargs`",
        ),
    ],
)
def test_a_file_that_is_no_suite_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "suite.json"
    path.write_text(content)
    with pytest.raises(SuiteUnreadable, match=r"suite\.json") as refused:
        suite_of(path)
    assert message in str(refused.value)
    with pytest.raises(SuiteUnreadable, match="No such file"):
        suite_of(tmp_path / "missing.json")


def test_the_checks_of_a_users_suite_have_names(tmp_path: Path) -> None:
    """By type and columns, or by `meta.check`; what Dagster does not allow in a name is replaced."""
    given: list[dict[str, Any]] = [
        {"type": "expect_column_pair_values_to_be_equal", "kwargs": {"column_A": "a", "column_B": "b"}},
        {
            "type": "expect_column_values_to_not_be_null",
            "kwargs": {"column": "a"},
            "meta": {"check": "a is-there"},
        },
    ]
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"expectations": given}))
    found = suite_of(path)
    assert [each.check for each in found] == ["column_pair_values_to_be_equal_a_b", "a_is_there"]


def test_an_expectation_without_a_result_fails_its_own_check(tmp_path: Path) -> None:
    """What Great Expectations cannot create, and what it drops, is a failure of that check with the reason; the other
    expectations of both suites have their results."""
    given: list[dict[str, Any]] = [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "dlq_offset"}},
        # Without a schema that could be checked when the suite is loaded.
        {"type": "expect_column_values_to_be_increasing", "kwargs": {"column": "dlq_offset", "strictly_": 1}},
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "dlq_offset", "mostly": 7}},
    ]
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"expectations": given}))
    good, strange, invalid = users = suite_of(path)
    with QualityContext(tmp_path / "gx", SUITE[:1], path, users).open() as opened:
        opened._given = replace(opened._given, built_in=[*SUITE[:1], Expectation("dropped", "")])
        judged = archived(letter(7))
        frame = dead_letters.frame([judged], [NOTHING_COPIED], 4, set())
        found = opened.validate(frame, "unit", lambda row: about(judged, str(row)))
    assert found[good.check].problem is None
    assert "could not be evaluated: ValidationError" in str(found[strange.check].problem)
    assert "strictly_" in str(found[strange.check].problem)
    assert "could not be evaluated" in str(found[invalid.check].problem)
    assert found["dropped"].problem == "Great Expectations returned no result for it"
    assert found[SUITE[0].check].problem is None


def test_an_expectation_that_raises_costs_no_other_its_result(tmp_path: Path) -> None:
    """Great Expectations raises for the whole checkpoint if a parameter has no value, or if a result cannot be
    stored: that is the failure of that check alone. A reason that has every value of a column is shortened."""
    given: dict[str, dict[str, Any]] = {
        "good": {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "dlq_offset"}},
        "parameter": {
            "type": "expect_column_max_to_be_between",
            "kwargs": {"column": "deliveries", "max_value": {"$PARAMETER": "most"}},
        },
        # With all values null, its result has a bool of numpy.
        "quantiles": {
            "type": "expect_column_quantile_values_to_be_between",
            "kwargs": {
                "column": "archived_deliveries",
                "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 1]]},
            },
        },
        "long": {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "topic", "min_value": 0}},
    }
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"expectations": [{**e, "meta": {"check": c}} for c, e in given.items()]}))
    judged = [archived(letter(offset)) for offset in range(100)]
    with QualityContext(tmp_path / "gx", SUITE[:1], path, suite_of(path)).open() as opened:
        frame = dead_letters.frame(judged, [NOTHING_COPIED] * 100, 4, set())
        frame["archived_deliveries"] = float("nan")
        for _ in range(2):
            found = opened.validate(frame, "unit", lambda row: about(judged[0], str(row)))
    problems = {check: each.problem for check, each in found.items()}
    assert problems[SUITE[0].check] is problems["good"] is None
    assert problems["parameter"] == (
        "could not be evaluated: SuiteParameterError: No value found for $PARAMETER most"
    )
    assert "could not be evaluated: TypeError" in str(problems["quantiles"])
    assert str(problems["long"]).startswith(
        "could not be evaluated: Could not convert string 'flightsflights"
    )
    assert len(str(problems["long"])) == REASON_CHARACTERS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"expectations": [%s], "expectations": [%s]}', "an object has 'expectations' twice"),
        ('{"expectations": [{"kwargs": {"min_value": NaN}}]}', "NaN is not a number"),
        ('{"expectations": ' + 100_000 * "[", "is nested too deeply"),
        (
            '{"expectations": [%s, {"type": "expect_column_values_to_be_null", "kwargs": {"column": "a"},'
            ' "meta": {"check": "数据"}}]}',
            "''",
        ),
        (
            '{"expectations": [%s, {"type": "expect_column_values_to_be_null", "kwargs": {"column": "a"},'
            ' "meta": {"check": "headers valid"}}]}',
            "would have the check 'headers_valid': give it another name",
        ),
    ],
    ids=["twice", "nan", "nested", "no name", "taken"],
)
def test_a_suite_with_expectations_that_cannot_fail_is_refused(text: str, says: str, tmp_path: Path) -> None:
    """What JSON would drop, what no value can fail, and names that Dagster would refuse without the suite's path."""
    good = '{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "a"}}'
    path = tmp_path / "suite.json"
    path.write_text(text.replace("%s", good))
    with pytest.raises(SuiteUnreadable, match=re.escape(says)):
        suite_of(path, {HEADERS})
    path.write_text(f'{{"expectations": [{good}]}}', "utf-8-sig")
    assert len(suite_of(path, {HEADERS})) == 1


def test_a_suite_stands_beside_its_defs_yaml() -> None:
    """It is found there whatever the working directory is, and a wrong one is refused when the yaml is loaded."""
    attributes = {
        "group": "orders",
        "topics": ["orders"],
        "pipeline": "pipelines.flights.pipeline:flight_delays",
        "dead_letters": {"suite": "dlq_suite.json"},
        "checks": {"max_lag": 5, "max_age": "2h"},
    }
    text = yaml.safe_dump({"type": "sharequeue.dagster.ShareGroupComponent", "attributes": attributes})
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.defs_folder_path / "orders"
        folder.mkdir()
        (folder / "defs.yaml").write_text(text)
        resources = "import dagster as dg\nfrom sharequeue.dagster import share_group_resources as of\n\n"
        (sandbox.defs_folder_path / "resources.py").write_text(
            f"{resources}@dg.definitions\ndef resources():\n    return of()\n"
        )
        suite = folder / "dlq_suite.json"
        suite.write_text(
            '{"expectations": [{"type": "expect_table_row_count_to_be_between", "meta": {"check": "own"}}]}'
        )
        with sandbox.build_all_defs() as defs:
            names = {key.name for each in defs.asset_checks or () for key in each.check_keys}
        assert {"own", "lag_bounded", "oldest_record_bounded", "none_stuck", "like_last_week"} < names
        suite.write_text("{}")
        with pytest.raises(Exception, match="defs.yaml") as refused, sandbox.build_all_defs():  # noqa: RUF043
            pass
        told = "".join(traceback.format_exception(refused.value))
        assert "dlq_suite.json is not a suite of Great Expectations" in told


def test_the_next_run_reads_what_the_checks_have_stored() -> None:
    """Findings, positions and counts, with the commands that fit in a check's table."""
    at, asset = SharePartition("g", "flights", 0), dg.AssetKey(DQ)
    lost = LetterFinding("missing", None, None, "flights", 0, 4)
    found = Found(Counter({"missing": 1, "doubled": 30}), [lost], {0: 7})
    found_by_check = {"a": found, "b": Found()}
    kept = KeptFindings("id", {0: 7}, {at: BatchPosition(2, 5)}, found_by_check, "2026-01-01", "2026-01-02")
    with dg.DagsterInstance.ephemeral() as instance:
        assert KeptFindings.of(instance, asset, "g") == KeptFindings()
        kept.store(instance, asset)
        assert KeptFindings.of(instance, asset, "g") == replace(kept, found={"a": found})
        assert KeptFindings.of(instance, dg.AssetKey("other"), "g") == KeptFindings()
    whole, altered = (LetterFinding("x", 0, 3, "flights", 0, 2, intact=intact) for intact in (True, False))
    assert whole.row("dlq")[-1] == "sharequeue dlq redrive dlq --offsets 0:3"
    assert altered.row("dlq")[-1] == "sharequeue dlq show dlq 0 3"
    assert lost.row("dlq")[-1] == "sharequeue trace flights 0 4"
    assert whole.row("dlq", "discarded")[-1] == "sharequeue dlq show dlq 0 3  # status: discarded"
    assert (whole.record("dlq"), LetterFinding("x", 0, 3).record("dlq")) == ("flights-0@2", "dlq-0@3")


def test_a_finding_stays_until_the_topic_has_lost_its_letter() -> None:
    """One without a letter stays; those that are not listed stay while a letter from then may be there."""
    lost = LetterFinding("missing", None, None, "flights", 0, 4)
    found = Found()
    found.add("missing", 1, [lost])
    found.add("doubled", 50, (LetterFinding("doubled", 0, at) for at in range(60, 110)))
    kept = Found().merged(found, {0: 110, 1: 40})
    assert (len(kept.findings), kept.unlisted, kept.counts) == (20, 31, {"missing": 1, "doubled": 50})

    def left(first: int, second: int) -> Found:
        return kept.still({0: LogOffsets(first, 200, 200), 1: LogOffsets(second, 100, 100)})

    assert left(0, 0) == kept
    assert (left(61, 0).counts, left(61, 0).unlisted) == ({"missing": 1, "doubled": 49}, 31)
    assert (left(110, 39).counts, len(left(110, 39).findings)) == ({"missing": 1, "doubled": 31}, 1)
    assert left(110, 40).counts == {"missing": 1}
    assert left(110, 40).findings == [lost]


def test_drift_of_a_few_letters_is_not_reported() -> None:
    """Volume by its factor, causes by their share, and nothing of a few letters."""
    bounds = Drift(min_records=100)

    def said(this: int, last: int, *, rejected: float = 1.0) -> list[str]:
        now = Counter({"rejected": int(this * rejected), "exhausted": this - int(this * rejected)})
        return changes_of(now, Counter({"rejected": last}), bounds)

    assert said(99, 0) == []
    assert said(150, 100) == []
    assert said(5000, 0) == ["5,000 dead letters in the last seven days, 0 in the seven before"]
    assert said(0, 200) == ["0 dead letters in the last seven days, 200 in the seven before"]
    assert said(120, 100, rejected=0.75) == [
        "exhausted: 25% of all, 0% in the week before",
        "rejected: 75% of all, 100% in the week before",
    ]


def test_a_position_past_the_log_end_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what stays ahead of its log is called so."""
    ends = iter([0, 0, 2])

    def describe(group_id: str) -> list[Any]:
        return [SimpleNamespace(log_end=next(ends), spso=2, delivery_complete_count=0)]

    monkeypatch.setattr(
        position, "State", lambda _: SimpleNamespace(figures=SimpleNamespace(describe=describe))
    )
    monkeypatch.setattr(position, "SETTLE_SECONDS", 60.0)
    database: Any = None
    assert position.settled(database, "g")
    assert next(ends, None) is None


def test_the_context_of_a_deleted_group_is_removed(tmp_path: Path) -> None:
    """A later group of the same name begins without its results and pages, and keeps its own."""
    site = site_folder(tmp_path)
    site.mkdir(parents=True)
    (site / "index.html").write_text("of the deleted group")
    (result := tmp_path / "gx" / "result.json").touch()
    now = datetime.now(UTC)
    with QualityContext(tmp_path, SUITE, created_at=now - timedelta(hours=1)).open():
        assert result.exists()
    with QualityContext(tmp_path, SUITE, created_at=now + timedelta(hours=1)).open():
        assert not result.exists()
        assert not site.exists()


@pytest.mark.parametrize("fails", [False, True])
def test_what_follows_the_import_ahead_does_not_run_beside_it(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """If two threads import from one package, both may fail. The checks say what is wrong with the import."""
    written, events = threading.Event(), []

    def imported() -> None:
        written.wait()
        events.append("imported")
        if fails:
            raise ImportError("great_expectations")

    monkeypatch.setattr(context, "_imported", imported)
    with suppress(KeyError), context.imported_ahead():
        events.append("written")
        written.set()
        if fails:
            raise KeyError
    assert events == ["written", "imported"]
