"""A topic that is deleted and created again while its letters are redriven or discarded is refused by name: the same
offsets are other records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from sharequeue.deadletters.hidden import read_settled
from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.redrive.discard import Discard
from sharequeue.deadletters.redrive.redrive import Redrive, RedriveReport
from sharequeue.deadletters.redrive.selection import REDRIVE_COUNT, RedriveRefused, Selection
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import SharePartition
from tests import single
from tests.fixtures.deadletters import GivenUp, execute
from tests.fixtures.stack import MakeTopic
from tests.integration.deadletters.redrive.test_redrive import put_back

Make = Callable[..., GivenUp]


def redrive(case: GivenUp, **options: object) -> Redrive:
    return Redrive(case.settings, case.database, case.dead_letter_topic, Selection(), **options)  # type: ignore[arg-type]


def create_again(case: GivenUp, topic: str) -> None:
    partitions = case.topics.info(topic).partitions
    case.topics.delete(topic)
    case.topics.create(topic, partitions, {"errors.deadletterqueue.group.enable": "true"})


def with_letters(given_up: Make, copy: bool = True) -> GivenUp:
    case = given_up(copy=copy)
    case.produce(6)
    case.reject()
    case.writer().write()
    return case


def refill(case: GivenUp) -> None:
    """Create the dead-letter topic again, and write letters of another group at the same offsets."""
    create_again(case, case.dead_letter_topic)
    other = case.renamed(f"{case.group}-other")
    other.reject()
    other.writer().write()


def at_step(wanted: BatchStep, act: Callable[[], None], number: int = 1) -> Callable[[BatchStep], None]:
    """A step hook that acts the n-th time that this step is reached."""
    left = [number]

    def on_step(reached: BatchStep) -> None:
        left[0] -= reached == wanted
        if reached == wanted and left[0] == 0:
            act()

    return on_step


def test_a_letter_of_the_former_topic_is_not_taken_for_one_of_the_new_one(given_up: Make) -> None:
    """Its record is gone, although the group goes on in the new topic, which has another record at the same offset;
    that one's letter is sent."""
    case = with_letters(given_up, copy=False)
    create_again(case, case.topic)
    case.produce(6, value=lambda number: b"new %d" % number)
    single.alter_offsets(
        case.state, SharePartition(case.group, case.topic, 0), case.topics.info(case.topic).topic_id, 0
    )
    assert redrive(case).plan().gone == 6
    case.reject({0: OffsetSet.of((4, 5))})
    case.writer().write()
    work = redrive(case)
    plan = work.plan()
    assert (plan.letters, plan.gone) == (1, 6)
    assert work.run(plan).sent == 1
    records = read_settled(case.settings, case.topic)
    assert [record.value for record in records if record.header(REDRIVE_COUNT)] == [b"new 4"]


def test_the_dead_letter_topic_is_another_one_since_the_plan(given_up: Make, make_topic: MakeTopic) -> None:
    """Neither a redrive nor a discard touches the letters of the new one."""
    case = with_letters(given_up)
    work, discarding = (
        redrive(case),
        Discard(case.settings, case.database, case.dead_letter_topic, Selection()),
    )
    plan, to_discard = work.plan(), discarding.plan()
    refill(case)
    for act in (lambda: work.run(plan), lambda: discarding.run(to_discard), work.plan, discarding.plan):
        with pytest.raises(RedriveRefused, match=f"{case.dead_letter_topic} was deleted or created again"):
            act()
    assert put_back(case) == Counter()
    assert redrive(case).plan().letters == 6


@pytest.mark.parametrize(("step", "number"), [("closed", 1), ("producing", 3)])
def test_the_dead_letter_topic_is_created_again_during_a_redrive(
    given_up: Make, step: BatchStep, number: int
) -> None:
    """The redrive ends with what it had sent before; no letter of the new topic is sent."""
    case = with_letters(given_up)
    letters = {f"{case.dead_letter_topic}:0:{offset}" for offset in range(6)}
    work = redrive(case, batch_records=2, on_step=at_step(step, lambda: refill(case), number))
    plan = work.plan()
    with pytest.raises(RedriveRefused, match=f"{case.dead_letter_topic} was deleted or created again"):
        work.run(plan)
    sent = put_back(case)
    assert sent.total() == 2
    assert set(sent) < letters


def test_a_source_is_created_again_while_it_is_read(given_up: Make, make_topic: MakeTopic) -> None:
    """A batch with records of both topics is not committed."""
    case = with_letters(given_up, copy=False)
    elsewhere = make_topic(1)
    again = at_step("producing", lambda: create_again(case, case.topic))
    with pytest.raises(RedriveRefused, match=f"{case.topic} was deleted or created again"):
        execute(redrive(case, target=elsewhere, on_step=again))
    assert put_back(case, elsewhere) == Counter()


def test_a_target_is_created_again(given_up: Make, make_topic: MakeTopic) -> None:
    """Since the plan: nothing is sent. Between two batches: the letters left are named, for another redrive."""
    case = with_letters(given_up)
    elsewhere = make_topic(1)
    work = redrive(case, target=elsewhere)
    plan = work.plan()
    create_again(case, elsewhere)
    with pytest.raises(RedriveRefused, match=f"{elsewhere} was deleted or created again"):
        work.run(plan)
    assert put_back(case, elsewhere) == Counter()
    again = at_step("closed", lambda: create_again(case, elsewhere))
    report: RedriveReport = execute(redrive(case, target=elsewhere, batch_records=2, on_step=again))
    assert (report.sent, [each.offset for each in report.refused]) == (2, [2, 3, 4, 5])
    assert "was created again since its redrive began" in report.refused[0].reason
    assert execute(redrive(case, target=elsewhere)).sent == 4
