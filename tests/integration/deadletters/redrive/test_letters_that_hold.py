"""Letters that hold their keys (`sharequeue.order.on.dead.letter=hold`): until they are redriven or discarded."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from sharequeue.cli import command
from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.redrive.batches import RedriveBatches
from sharequeue.deadletters.redrive.discard import Discard
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.state.calls import LeaseAcknowledgement
from sharequeue.state.dead_letters import FreedKeys
from tests import single
from tests.fixtures.deadletters import GivenUp, Stop, execute
from tests.waiting import PATIENCE_S

Make = Callable[..., GivenUp]
ACCEPT, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT


def one(offset: int) -> OffsetSet:
    return OffsetSet.of((offset, offset + 1))


@pytest.fixture
def case(given_up: Make) -> GivenUp:
    """Give a group whose record 0 has a dead letter, which holds records 1 and 3 of its key; 2 was accepted."""
    made = given_up(dlq_partitions=1, copy=True)
    order = {"sharequeue.order": "key", "sharequeue.order.on.dead.letter": "hold"}
    alter_group_configs(made.database, made.group, order)
    made.produce(4)
    (at,) = made.observe()
    reject_first(made, at)
    return made


def reject_first(case: GivenUp, at: SharePartition) -> None:
    """Record 0 gets a dead letter, which holds 1 and 3; 2 is accepted."""
    lease = single.acquire(case.state, at, "member", None, 10)
    assert lease is not None
    held, key = one(1) | one(3), key_hash(b"key 0")
    outcomes = {REJECT: one(0), ACCEPT: one(2)}
    case.state.acknowledge([LeaseAcknowledgement(lease, outcomes, holds=held, keys={key: one(0) | held})])
    case.writer().write()
    assert leased(case) is None


def leased(case: GivenUp) -> OffsetSet | None:
    """Return what can be leased now; it is leased then."""
    at = SharePartition(case.group, case.topic, 0)
    lease = single.acquire(case.state, at, "member", None, 10)
    return None if lease is None else lease.offsets


def run(case: GivenUp, monkeypatch: pytest.MonkeyPatch, act: str, *words: str) -> tuple[dict[str, int], str]:
    """Run a command of `dlq`; return its row, and its warnings."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    done = CliRunner().invoke(command, ["dlq", act, case.dead_letter_topic, "-o", "json", *words])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    return row, done.stderr


FREED = "1 key that these letters hold would go on, with 2 held records"


def test_a_discarded_letter_lets_its_key_go_on(case: GivenUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dry run counts keys and held records, and changes nothing."""
    assert [each.state for each in case.state.figures.open_keys(case.group, 9)] == ["dead_letter"]
    assert FREED in run(case, monkeypatch, "discard")[1]
    assert leased(case) is None
    row, _ = run(case, monkeypatch, "discard", "--execute", "--yes")
    assert (row["discarded"], row["freed_keys"], row["freed_records"]) == (1, 1, 2)
    assert leased(case) == one(1) | one(3)
    assert case.state.figures.verify(case.group) == []


def test_a_redriven_letter_lets_its_key_go_on_behind_the_held_records(
    case: GivenUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is at the end of its topic, behind them: 4, with the marker of its transaction at 5."""
    assert FREED in run(case, monkeypatch, "redrive")[1]
    assert leased(case) is None
    row, _ = run(case, monkeypatch, "redrive", "--execute", "--yes")
    assert (row["sent"], row["freed_keys"], row["freed_records"]) == (1, 1, 2)
    case.observe()
    assert leased(case) == OffsetSet.parse("{[1,2),[3,6)}")
    (status,) = case.state.figures.describe(case.group)
    assert (status.spso, status.open_keys, status.letter_keys) == (1, 1, 0)


def test_a_redrive_that_died_is_repeated(case: GivenUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """It died between the end of its batch and the release of the key. The next one sends nothing, and frees it."""
    with monkeypatch.context() as dying:

        def dies(*_: object) -> FreedKeys:
            raise Stop("closed")

        batches: BatchStep = "closed"
        dying.setattr(
            RedriveBatches, "free_keys", lambda self, letters: FreedKeys() if not letters else dies()
        )
        with pytest.raises(Stop, match=batches):
            execute(Redrive(case.settings, case.database, case.dead_letter_topic, Selection()))
    assert [each.state for each in case.state.figures.open_keys(case.group, 9)] == ["dead_letter"]
    report = execute(Redrive(case.settings, case.database, case.dead_letter_topic, Selection()))
    assert (report.sent, report.freed) == (0, FreedKeys(1, 2))
    case.observe()
    assert leased(case) == OffsetSet.parse("{[1,2),[3,6)}")


@pytest.mark.parametrize("made_again", [False, True])
def test_an_older_letter_of_the_place_frees_nothing(case: GivenUp, *, made_again: bool) -> None:
    """Neither an earlier letter of the same record nor, after the topic was made again, one of another record at its
    offset lets a key go on: only the letter that holds it does, also where the other one was handled before."""
    if made_again:
        case.topics.delete(case.topic)
        case.topics.create(case.topic, 1)
        case.produce(4)
    at = SharePartition(case.group, case.topic, 0)
    single.alter_offsets(case.state, at, case.topics.info(case.topic).topic_id, 0)
    case.observe()
    reject_first(case, at)
    old, new = (letter.offset for letter in case.letters())

    def discard(offset: int) -> tuple[int, FreedKeys]:
        selection = Selection(offsets={0: one(offset)})
        discarding = Discard(case.settings, case.database, case.dead_letter_topic, selection)
        plan = discarding.plan()
        done = discarding.run(plan)
        assert plan.freed == done.freed
        return done.letters, done.freed

    assert discard(old) == (1, FreedKeys())
    assert leased(case) is None
    assert discard(old) == (0, FreedKeys())
    assert discard(new) == (1, FreedKeys(1, 2))
    assert leased(case) == one(1) | one(3)


def test_a_letter_that_is_no_longer_in_its_topic(case: GivenUp) -> None:
    """A discard without conditions on letters lets its key go on, and says so in its plan."""
    admin = AdminClient(client_config(case.settings))
    (end,) = case.topics.offsets(case.dead_letter_topic).values()
    for deleted in admin.delete_records([TopicPartition(case.dead_letter_topic, 0, end.log_end)]).values():
        deleted.result(PATIENCE_S)

    def discard(**conditions: str) -> Discard:
        return Discard(case.settings, case.database, case.dead_letter_topic, Selection(**conditions))  # type: ignore[arg-type]

    assert discard(cause="rejected").plan().absent_letters == 0
    plan = discard(group=case.group).plan()
    assert (plan.letters, plan.absent_letters, plan.freed) == (0, 1, FreedKeys(1, 2))
    assert discard(group=case.group).run(plan) == (0, FreedKeys(1, 2))
    assert leased(case) == one(1) | one(3)


def test_the_writer_reports_the_keys_of_letters(given_up: Make) -> None:
    """Only the writer reads the key of a record whose worker has not reported it."""
    case = given_up(dlq_partitions=1)
    order = {"sharequeue.order": "key", "sharequeue.order.on.dead.letter": "hold"}
    alter_group_configs(case.database, case.group, order)
    case.produce(2)
    (at,) = case.observe()
    lease = single.acquire(case.state, at, "member", None, 1)
    assert lease is not None
    case.state.acknowledge([LeaseAcknowledgement(lease, {REJECT: one(0)})])
    case.writer().write()
    (key,) = case.state.figures.open_keys(case.group, 9)
    assert (key.key_hash, key.first_offset, key.state, key.held_records) == (
        key_hash(b"key 0"),
        0,
        "dead_letter",
        0,
    )
