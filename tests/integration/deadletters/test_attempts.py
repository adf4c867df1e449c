"""Who tried a record, when, and what was wrong with it: from the lease to the headers of its dead letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from sharequeue.consumer.failures import SINK
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, LeaseOutput, SharePartition
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.heartbeats import HeartbeatRequest, ensure_group, heartbeat
from tests import single
from tests.fixtures.deadletters import GROUP_CONFIGS, GivenUp
from tests.waiting import set_clock

Make = Callable[..., GivenUp]


@pytest.fixture
def case(given_up: Make, private_database: Database) -> GivenUp:
    """Give a group with a limit of two deliveries over 20 records, in a database whose clock can be moved."""
    made = replace(given_up(dlq_partitions=1), database=private_database)
    configs = {name.replace(".", "_"): value for name, value in GROUP_CONFIGS.items()}
    ensure_group(private_database, made.group)
    made.configure(
        **configs,
        share_delivery_count_limit="2",
        errors_deadletterqueue_topic_name=made.dead_letter_topic,
    )
    made.produce(20)
    at, log = source(made), made.topics.offsets(made.topic)[0]
    topic_id = made.topics.describe([made.topic])[made.topic].topic_id
    made.state.initialize(at, topic_id, 0, 1)
    single.observe(made.state, at, topic_id, log.log_start, log.log_end, log.last_stable_offset)
    return made


def source(case: GivenUp) -> SharePartition:
    return SharePartition(case.group, case.topic, 0)


def acquire(case: GivenUp, member: str, records: int = 20) -> Lease:
    lease = single.acquire(case.state, source(case), member, None, records, redelivery="kafka")
    assert lease is not None
    return lease


def written_exceptions(folder: Path, errors: dict[int, str]) -> list[LeaseOutput]:
    """The outputs of a run: what it accepted, and the exceptions as it writes them."""
    folder.mkdir(parents=True)
    rows = [{"offset": offset, "outcome": "release", "error": error} for offset, error in errors.items()]
    pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    return [
        LeaseOutput("flights", str(folder.parent / "accepted"), 1),
        LeaseOutput("flights-exceptions", str(folder), len(errors)),
    ]


def test_a_letter_names_exception_attempts_and_run(case: GivenUp, tmp_path: Path) -> None:
    """Released with a reason, released with another: class and message are the last's, and both times are told."""
    everything = OffsetSet.of((0, 20))
    client = HeartbeatRequest(
        case.group, "second", 0, client_id="dagster-run-7", subscribed_topic_names=(case.topic,)
    )
    assert heartbeat(case.database, client, ServiceConfigs.of({})).error_code == 0
    began = case.state.now()
    first = acquire(case, "first")
    outputs = written_exceptions(tmp_path / "lease=1", dict.fromkeys(range(20), "ValueError: once"))
    single.acknowledge(case.state, first, {AcknowledgeType.RELEASE: everything}, outputs=outputs)
    set_clock(case.database, timedelta(minutes=30))
    second = acquire(case, "second")
    failing = {3: "KeyError: 'tail'", 4: "json.decoder.JSONDecodeError: no JSON", 9: "it does not fly"}
    outputs = written_exceptions(tmp_path / "lease=2", failing)
    fails = OffsetSet.of((3, 5), (9, 10))
    single.acknowledge(
        case.state,
        second,
        {AcknowledgeType.RELEASE: fails, AcknowledgeType.ACCEPT: everything - fails},
        outputs=outputs,
    )
    assert case.writer().write().held == ()

    letters = {letter.source_offset or 0: letter for letter in case.letters()}
    assert sorted(letters) == [3, 4, 9]
    assert [letters[at].exception_class for at in (3, 4, 9)] == [
        "KeyError",
        "json.decoder.JSONDecodeError",
        None,
    ]
    assert [letters[at].exception_message for at in (3, 4, 9)] == ["'tail'", "no JSON", "it does not fly"]
    for letter in letters.values():
        assert letter.header("sharequeue.run.id") == "dagster-run-7"
        assert letter.header("sharequeue.member.id") == "second"
        tried = [int(letter.header(f"sharequeue.attempt.{which}") or 0) / 1000 for which in ("first", "last")]
        since = began.replace(microsecond=began.microsecond // 1000 * 1000).timestamp()  # as the headers: ms
        assert 0 <= tried[0] - since < 60
        assert 1800 <= tried[1] - since < 1860
        assert [name for name, _ in letter.headers[:6]] == [
            f"__dlq.errors.{name}"
            for name in ("topic", "partition", "offset", "group", "delivery.count", "message")
        ]


def test_a_group_may_leave_the_messages_of_exceptions_out(case: GivenUp, tmp_path: Path) -> None:
    """By default the message is there; with the config the class alone, and no header has anything of the message."""
    for number, enable in enumerate((None, "false", "true")):
        if enable is not None:
            case.configure(sharequeue_dead_letter_error_message_enable=enable)
        lease = acquire(case, "member", 2)
        at = lease.offsets.first
        outputs = written_exceptions(
            tmp_path / f"lease={number}", {at: "ValueError: s3cret", at + 1: "all s3cret"}
        )
        single.acknowledge(case.state, lease, {AcknowledgeType.REJECT: lease.offsets}, outputs=outputs)
        case.writer().write()
    letters = sorted(case.letters(), key=lambda letter: letter.source_offset or 0)
    assert [(letter.exception_class, letter.exception_message) for letter in letters] == [
        *(("ValueError", "s3cret"), (None, "all s3cret")),
        *(("ValueError", None), (None, None)),
        *(("ValueError", "s3cret"), (None, "all s3cret")),
    ]
    assert not [
        value for letter in letters[2:4] for _, value in letter.headers if b"s3cret" in (value or b"")
    ]


def test_a_lapsed_lease_is_an_attempt_whose_lock_lapsed(case: GivenUp, tmp_path: Path) -> None:
    """What killed its worker says nothing: the letter has the member's name and the times, and no stale reason."""
    first = acquire(case, "first", 1)
    outputs = written_exceptions(tmp_path / "lease=1", {0: "ValueError: once"})
    single.acknowledge(case.state, first, {AcknowledgeType.RELEASE: OffsetSet.of((0, 1))}, outputs=outputs)
    assert acquire(case, "killed", 1).offsets == OffsetSet.of((0, 1))
    set_clock(case.database, timedelta(minutes=60))
    case.state.sweep()
    case.writer().write()
    (letter,) = case.letters()
    assert (letter.cause, letter.exception_class) == ("exhausted", "LockLapsed")
    assert "the process that held the record was killed, or took longer" in (letter.exception_message or "")
    assert letter.header("sharequeue.run.id") == "killed"


def test_a_letter_has_the_reason_for_which_its_lease_was_given_back(case: GivenUp) -> None:
    """Of each lease its own, also without the messages of exceptions; none was given: none is in the letter. A longer
    one than any letter shows is cut, and one with a zero byte is none the less stored."""
    case.configure(sharequeue_dead_letter_error_message_enable="false")
    for _ in range(2):
        leases = [acquire(case, "member", 1) for _ in range(3)]
        case.state.release(leases, reasons=["ProcessKilled: killed its\0 process", None, "x" * 10_000])
    case.writer().write()
    letters = sorted(case.letters(), key=lambda letter: letter.source_offset or 0)
    assert [(each.exception_class, each.exception_message) for each in letters] == [
        ("ProcessKilled", None),
        (None, None),
        (None, None),
    ]


def test_attempts_are_kept_no_longer_than_their_records_are_in_flight(case: GivenUp) -> None:
    """Behind SPSO nothing is known of attempts any more, and of groups without a dead-letter topic nothing ever."""

    def kept() -> int:
        return len(case.database.rows(sa.text("select from sharequeue.lease_outputs")))

    def known() -> list[tuple[int, str]]:
        rows = case.database.rows(
            sa.text("select past, offsets::text as offsets from sharequeue.failed_attempts order by past")
        )
        return [(row["past"], row["offsets"]) for row in rows]

    lease = acquire(case, "a", 10)
    # What a consumer wrote goes with them; what a run wrote stays.
    outputs = [LeaseOutput(sink, "/x", 1) for sink in (SINK, "flights-exceptions")]
    single.acknowledge(
        case.state,
        lease,
        {AcknowledgeType.REJECT: OffsetSet.of((2, 4)), AcknowledgeType.RELEASE: OffsetSet.of((8, 10))},
        outputs=outputs,
    )
    assert known() == [(10, "{[2,4),[8,10)}")]
    assert kept() == 2
    single.acknowledge(case.state, lease, {AcknowledgeType.ACCEPT: OffsetSet.of((0, 2), (4, 8))})
    assert len(known()) == 1
    case.writer().write()
    lease = acquire(case, "b", 10)
    single.acknowledge(case.state, lease, {AcknowledgeType.REJECT: OffsetSet.of((8, 9))})
    assert [past for past, _ in known()] == [9, 10]
    single.acknowledge(case.state, lease, {AcknowledgeType.ACCEPT: lease.offsets - OffsetSet.of((8, 9))})
    case.writer().write()
    assert known() == []
    assert kept() == 1
    case.configure(errors_deadletterqueue_topic_name="")
    rest = acquire(case, "c")
    single.acknowledge(case.state, rest, {AcknowledgeType.REJECT: rest.offsets})
    assert known() == []


def test_a_letter_fits_a_topic_that_takes_little(given_up: Make) -> None:
    """Where what is told makes a letter too large for its topic, it is left out, and the letter is written."""
    case = given_up(dlq_partitions=1, max_message_bytes="600")
    case.produce(3)
    case.reject()
    report = case.writer().write()
    assert (report.written, report.held) == (3, ())
    assert {letter.header("sharequeue.member.id") for letter in case.letters()} == {None}
    case.assert_each_exactly_once()
