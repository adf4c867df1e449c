"""A redrive and a publication of a replay with the same records: whichever comes second sees the first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import UUID

import pytest
import sqlalchemy as sa

from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.redriven_records import find_redriven_records
from sharequeue.deadletters.redrive.selection import RedriveRefused, Selection
from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import SharePartition
from tests import single
from tests.fixtures.deadletters import GivenUp, Stop, execute
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

Make = Callable[..., GivenUp]
ALL = OffsetSet.of((0, 6))


@pytest.fixture
def case(given_up: Make) -> GivenUp:
    """Give a group with letters of all its six records."""
    made = given_up(dlq_partitions=1, copy=True)
    made.produce(6)
    made.reject()
    made.writer().write()
    return made


def redrive(case: GivenUp, **given: object) -> Redrive:
    letters = case.dead_letter_topic
    return Redrive(case.settings, case.database, letters, Selection(), **given)  # type: ignore[arg-type]


def begin(case: GivenUp, offsets: OffsetSet = ALL, replay: str = "again") -> UUID:
    """A publication of a replay of these records begins."""
    topic_id = case.topics.info(case.topic).topic_id
    return case.state.outputs.begin_publication(
        case.group, "sink", replay, {(case.topic, 0): (topic_id, offsets)}
    )


def publish(case: GivenUp, offsets: OffsetSet, with_rows: OffsetSet, replay: str = "again") -> None:
    case.state.outputs.end_publication(begin(case, offsets, replay), {(case.topic, 0): with_rows})


def test_no_replay_is_published_while_a_redrive_of_its_records_is_under_way(case: GivenUp) -> None:
    """It is refused by name, whatever was sent until then; not for records that the redrive has not planned, nor
    when it has ended."""
    sent, may_go_on = threading.Event(), threading.Event()

    def on_step(step: BatchStep) -> None:
        if step == "closed":
            sent.set()
            assert may_go_on.wait(PATIENCE_S)

    work = redrive(case, on_step=on_step, batch_records=2)
    at_work = threading.Thread(target=work.run, args=(work.plan(),))
    at_work.start()
    try:
        assert sent.wait(PATIENCE_S)
        with pytest.raises(
            InvalidRequest, match=rf"redrive .* of {case.dead_letter_topic}, begun at .* UTC by"
        ):
            begin(case, OffsetSet.of((5, 6)))
        case.state.outputs.forget_publication(begin(case, OffsetSet.of((6, 9))))
    finally:
        may_go_on.set()
        at_work.join(PATIENCE_S)
    begin(case)


@pytest.mark.parametrize("cure", ["the same redrive", "an end"])
def test_a_redrive_that_was_killed_delays_a_publication_until_it_is_repeated_or_ended(
    case: GivenUp, monkeypatch: pytest.MonkeyPatch, cure: str
) -> None:
    """What another redrive has sent for it is done; one that was ended by hand sends nothing more."""
    work = redrive(case, batch_records=2)
    with monkeypatch.context() as killed:
        killed.setattr(work._batches, "end", lambda redrive_id: None)
        killed.setattr(work, "_wait", lambda sent: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            work.run(work.plan())
    with pytest.raises(InvalidRequest, match="If its process is gone, do the same redrive") as refused:
        begin(case)
    if cure == "an end":
        (statement,) = [part for part in str(refused.value).split(": ") if part.startswith("select")]
        case.database.rows(sa.text(statement))
        row = case.database.rows(
            sa.text("select redrive_id from sharequeue.redrives where dead_letter_topic = :topic"),
            topic=case.dead_letter_topic,
        )[0]
        with pytest.raises(InvalidRequest, match="has ended: do the rest with another one"):
            work._batches.open(0, row["redrive_id"], ALL, 10)
    else:
        assert execute(redrive(case)).sent == 4
    begin(case)


def test_a_redrive_leaves_out_what_was_published(case: GivenUp) -> None:
    """The group has a row of each of these records. One that a replay has rejected, or that a later one has taken
    out, comes back."""
    publish(case, ALL, OffsetSet.of((0, 4)))
    publish(case, OffsetSet.of((0, 1)), OffsetSet(), "later")
    plan = redrive(case).plan()
    assert (plan.letters, plan.published) == (3, 3)
    assert sorted(at.source_offset for _, at in plan.places) == [0, 4, 5]
    assert execute(redrive(case)).sent == 3
    again = redrive(case).plan()
    assert (again.letters, again.published, again.sent_before) == (0, 3, 3)


def test_a_published_record_may_go_to_others(
    case: GivenUp, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group does not get it from a topic that it does not read."""
    publish(case, ALL, ALL)
    assert redrive(case, target=make_topic(1)).plan().letters == 6
    assert redrive(case).plan().letters == 0


def test_a_letter_of_a_former_topic_is_of_another_record(case: GivenUp) -> None:
    """The topic was created again: a publication of its records concerns no letter of the former one, and what was
    put back for such a letter concerns no publication."""
    case.topics.delete(case.topic)
    topic_id = case.topics.create(case.topic, 1).topic_id
    single.alter_offsets(case.state, SharePartition(case.group, case.topic, 0), topic_id, 0)
    publish(case, ALL, ALL)
    plan = redrive(case).plan()
    assert (plan.letters, plan.published, plan.places) == (6, 0, ())
    assert redrive(case).run(plan).sent == 6
    found = find_redriven_records(case.settings, case.state, case.topics, case.group, [case.topic])
    assert found == {}


def test_no_redrive_begins_while_a_replay_with_its_records_is_published(case: GivenUp) -> None:
    """Neither one that is planned now nor one that was planned before. A publication that was killed is done with
    when it is repeated."""
    before = redrive(case)
    plan = before.plan()
    begin(case)
    with pytest.raises(RedriveRefused, match=r"replay again of group .* is being published by .* since"):
        redrive(case).plan()
    with pytest.raises(RedriveRefused, match=r"is being published by .*publish it again"):
        before.run(plan)
    publish(case, ALL, ALL)
    with pytest.raises(RedriveRefused, match=r"was published by .* Plan the redrive again"):
        before.run(plan)
    assert redrive(case).plan().published == 6


def test_a_redrive_that_fails_has_ended(case: GivenUp) -> None:
    """It sends nothing more, so that a publication need not wait for it; its open batch counts as sent."""

    def on_step(step: BatchStep) -> None:
        raise Stop(step)

    with pytest.raises(Stop):
        execute(redrive(case, on_step=on_step, batch_records=2))
    begin(case)
