"""Discarded letters: no redrive sends them, in whichever order the two come; nothing in the topic changes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from sharequeue.cli import command
from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.redrive.batches import RedriveBatches
from sharequeue.deadletters.redrive.discard import Discard, DiscardPlan
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import RedriveRefused, Selection
from sharequeue.domain.offsets import OffsetSet
from tests.fixtures.deadletters import GivenUp, Stop, execute
from tests.integration.deadletters.redrive.test_redrive import committed

Make = Callable[..., GivenUp]


@pytest.fixture
def case(given_up: Make) -> GivenUp:
    """Give a group with letters of all its six records."""
    made = given_up(dlq_partitions=1, copy=True)
    made.produce(6)
    made.reject()
    made.writer().write()
    return made


def at(*offsets: int) -> Selection:
    return Selection(offsets={0: OffsetSet.from_offsets(offsets)})


def discard(case: GivenUp, selection: Selection) -> Discard:
    return Discard(case.settings, case.database, case.dead_letter_topic, selection)


def discarded(case: GivenUp, selection: Selection) -> int:
    work = discard(case, selection)
    return work.run(work.plan()).letters


def redrive(case: GivenUp, **given: object) -> Redrive:
    return Redrive(case.settings, case.database, case.dead_letter_topic, Selection(), **given)  # type: ignore[arg-type]


def sent(case: GivenUp) -> list[bytes]:
    """The values of the records that were put back, in their order."""
    return [message.value() or b"" for message in committed(case, case.topic)][6:]


def invoke(case: GivenUp, monkeypatch: pytest.MonkeyPatch, act: str, *arguments: str) -> Result:
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    result = CliRunner().invoke(command, ["dlq", act, case.dead_letter_topic, *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_no_redrive_sends_a_discarded_letter(case: GivenUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command only shows it without `--execute`; the letter stays in the topic, and each redrive counts it."""
    shown = invoke(case, monkeypatch, "discard", "--offsets", "0:1-2")
    assert "LETTERS" in shown.stdout
    assert "this cannot be undone" in shown.stderr
    assert redrive(case).plan().letters == 6
    done = invoke(case, monkeypatch, "discard", "--offsets", "0:1-2", "--execute", "--yes", "-o", "json")
    assert '"discarded": 2' in done.stdout
    plan = redrive(case).plan()
    assert (plan.letters, plan.discarded, plan.sent_before) == (4, 2, 0)
    report = invoke(case, monkeypatch, "redrive", "--execute", "--yes", "-o", "json").stdout
    assert '"sent": 4' in report
    assert '"discarded": 2' in report
    assert sent(case) == [b"value 0", b"value 3", b"value 4", b"value 5"]
    assert "4 were sent before, 2 were discarded, 0" in invoke(case, monkeypatch, "redrive").stdout
    assert "4 were sent before, 2 were discarded before" in invoke(case, monkeypatch, "discard").stdout
    listed = json.loads(invoke(case, monkeypatch, "list", "-o", "json").stdout)
    statuses = ["sent", "discarded", "discarded", "sent", "sent", "sent"]
    assert [letter["status"] for letter in listed] == statuses
    without = invoke(
        case, monkeypatch, "list", "-o", "json", "--database-url", "postgresql://127.0.0.1:1/nowhere"
    )
    assert [letter["status"] for letter in json.loads(without.stdout)] == [None] * 6
    assert "could not check which letters were sent back or discarded" in without.stderr
    case.observe()  # a service that is running here may have done so
    case.assert_each_exactly_once(put_back=len(sent(case)) + 1)


def test_a_discarding_is_in_the_audit_log(case: GivenUp) -> None:
    """Who, when, how the letters were selected, and which they were; one that discards nothing is none."""
    selection = Selection(group=case.group, cause="rejected", offsets={0: OffsetSet.of((2, 4))})
    assert [discarded(case, selection), discarded(case, selection)] == [2, 0]
    (row,) = case.database.rows(
        sa.text(
            "select principal = sharequeue.principal() as is_mine, before, after from sharequeue.audit_trail"
            " where act = 'discard_letters' and group_id = :group"
        ),
        group=case.group,
    )
    assert row["is_mine"]
    assert row["before"] is None
    assert row["after"] == {
        "dead_letter_topic": case.dead_letter_topic,
        "topic_id": case.topics.info(case.dead_letter_topic).topic_id,
        "selection": {"group_id": case.group, "cause": "rejected", "offsets": {"0": "{[2,4)}"}},
        "letters": 2,
        "offsets": {"0": "{[2,4)}"},
    }


def test_what_was_sent_or_is_being_sent_cannot_be_discarded(
    case: GivenUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redrive that was killed between two batches: its open batch is left out by name, the rest can be discarded,
    and the next redrive sends the batch and no more."""
    steps: list[BatchStep] = []

    def die(reached: BatchStep) -> None:
        steps.append(reached)
        if steps.count("opened") == 2:
            raise Stop(reached)

    with pytest.raises(Stop):
        execute(redrive(case, batch_records=2, on_step=die))
    plan = discard(case, Selection()).plan()
    assert (plan.letters, plan.sent_before, plan.being_sent) == (2, 2, 2)
    shown = invoke(case, monkeypatch, "discard", "--execute", "--yes")
    assert "2 dead letters of a redrive that has not ended may have been sent" in shown.stderr
    report = execute(redrive(case))
    assert report.sent + report.resumed == 2
    assert sent(case) == [b"value %d" % number for number in range(4)]


def test_a_running_redrive_leaves_out_what_is_discarded_meanwhile(case: GivenUp) -> None:
    """The letters of its plan that it has not opened yet; a plan to discard leaves out what it has sent meanwhile."""
    late = discard(case, Selection())
    plan = late.plan()
    counts: list[int] = []

    def on_step(reached: BatchStep) -> None:
        if reached == "committed" and not counts:
            counts.append(discarded(case, at(1, 3)))
            counts.append(late.run(plan).letters)

    report = execute(redrive(case, batch_records=2, on_step=on_step))
    assert counts == [1, 3]
    assert report.sent == 2
    assert sent(case) == [b"value 0", b"value 1"]


def test_letters_of_a_topic_made_again_are_not_discarded(case: GivenUp) -> None:
    """They have the same offsets, and the topic another id."""
    assert discarded(case, Selection()) == 6
    other = RedriveBatches(case.database, case.dead_letter_topic, "another-id")
    assert other.handled() == {}


def test_a_publication_does_not_wait_for_letters_that_were_discarded(
    case: GivenUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redrive was killed before it recorded its end: nothing of its plan is left to be sent."""

    def die(reached: BatchStep) -> None:
        if reached == "closed":
            raise Stop(reached)

    with monkeypatch.context() as killed:
        work = redrive(case, batch_records=2, on_step=die)
        killed.setattr(work._batches, "end", lambda redrive_id: None)
        with pytest.raises(Stop):
            execute(work)
    assert discarded(case, Selection()) == 4
    topic_id = case.topics.info(case.topic).topic_id
    offsets = {(case.topic, 0): (topic_id, OffsetSet.of((0, 6)))}
    case.state.outputs.begin_publication(case.group, "sink", "again", offsets)


def test_a_selection_that_names_nothing_is_refused(case: GivenUp) -> None:
    """Before anything changes, as for a redrive."""
    for selection, words in (
        (Selection(group=f"{case.group}s"), "there is no such share group"),
        (Selection(source_topic=f"{case.topic}s"), "there is no such topic"),
        (Selection(offsets={7: OffsetSet.of((0, 1))}), "has no partition 7"),
        (at(99), "there is no letter at 99"),
    ):
        with pytest.raises(RedriveRefused, match=words):
            discard(case, selection).plan()
    assert discard(case, Selection(cause="exhausted")).plan() == DiscardPlan(has_letters=True)
