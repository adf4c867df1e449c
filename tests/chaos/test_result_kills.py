"""A sender of results killed at any step: every row is in the topic once, in order, and none of a half record."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import pyarrow as pa
import pytest

from sharequeue.deadletters.outbox import BatchStep
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import portable_config
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import StackInfo
from sharequeue.spark.sinks.kafka.sending import (
    LOST,
    OVERTAKEN,
    RECREATED,
    TopicSender,
    commit_first_marker,
)
from tests.chaos.forked_processes import in_fork
from tests.chaos.send_results import RECORDS, ROWS, batches, sending
from tests.fixtures.results import results_in
from tests.fixtures.stack import MakeTopic

Send = Callable[..., int]
STEPS: tuple[BatchStep, ...] = tuple(step for step in get_args(BatchStep) if step != "closed")
"""Nothing is closed by a task: the driver ends the transfer."""


@pytest.fixture(scope="module")
def forked(stack: StackInfo) -> Iterator[Send]:
    """Give a function that sends in a process of its own."""
    with in_fork(stack.home, module="tests.chaos.send_results") as send:
        yield send


class Sent:
    """One source partition whose results go to a topic."""

    def __init__(self, settings: Settings, group: str, source: str, target: str) -> None:
        self.settings, self.source, self.target = settings, source, target
        self.group = group
        self.client = portable_config(settings)

    def _sending(self, number: int) -> Any:
        with Topics(self.settings) as topics:
            found = topics.describe([self.target])[self.target].topic_id
        return sending(self.client, self.group, self.target, found, number)

    def mark(self) -> None:
        """Commit the first marker, as before the first acknowledgement."""
        commit_first_marker(self._sending(0), self.source, 0, lambda: True)

    def killed(self, forked: Send, number: int, first: int, step: BatchStep, nth: int) -> int:
        """Send in a process that kills itself."""
        told = self._sending(number)
        text = json.dumps(
            {
                "client": self.client,
                "group": self.group,
                "target": self.target,
                "target_id": told.target_id,
                "number": number,
            },
            separators=(",", ":"),
        )
        return forked(text, self.source, first, step, nth)

    def send(self, number: int, first: int) -> tuple[int, str | None]:
        """Send here; return how many rows were sent, and the problem."""
        sender = TopicSender(self._sending(number))
        (report,) = (row for batch in sender(batches(self.source, first)) for row in batch.to_pylist())
        return report["records"], report["problem"]

    def values(self, *, settled: bool = True) -> list[bytes | None]:
        return [each.value for each in results_in(self.settings, self.target, settled=settled)]


@pytest.fixture
def sent(settings: Settings, group: str, make_topic: MakeTopic) -> Sent:
    """Give a source partition with a marker, and an empty target."""
    found = Sent(settings, group, make_topic(1), make_topic(1))
    found.mark()
    return found


def rows_of(offsets: Sequence[int]) -> list[bytes]:
    return [b"%d %d" % (offset, row) for offset in offsets for row in range(ROWS)]


@pytest.mark.parametrize("step", STEPS)
def test_a_sender_killed_at_a_step_is_followed_by_one_that_sends_the_rest(
    sent: Sent, forked: Send, step: BatchStep
) -> None:
    """Also in the middle of a transfer of several transactions: each row once, in order, and the next transfer
    follows."""
    nth = 1 if step in ("initialised", "opened") else 3
    assert sent.killed(forked, 7, 0, step, nth) == -signal.SIGKILL
    there = sent.values(settled=False)
    assert there == rows_of(range(len(there) // ROWS))
    assert sent.send(7, 0)[1] is None
    assert sent.values() == rows_of(range(RECORDS))
    assert sent.send(7, 0) == (0, None)
    assert sent.send(8, RECORDS) == (RECORDS * ROWS, None)
    assert sent.values() == rows_of(range(2 * RECORDS))


def test_a_sender_that_comes_late_sends_nothing(sent: Sent) -> None:
    """A process that was paused repeats a transfer that has ended: the marker of the next one forbids it."""
    assert sent.send(7, 0)[1] is None
    assert sent.send(8, RECORDS)[1] is None
    assert sent.send(7, 0) == (0, OVERTAKEN)
    assert sent.values() == rows_of(range(2 * RECORDS))


def test_nothing_is_sent_without_a_marker(settings: Settings, group: str, make_topic: MakeTopic) -> None:
    """Whether an earlier process has sent the rows is not known."""
    lost = Sent(settings, group, make_topic(1), make_topic(1))
    assert lost.send(7, 0) == (0, LOST)
    commit_first_marker(lost._sending(0), lost.source, 0, lambda: False)
    assert lost.send(7, 0) == (0, LOST)
    assert lost.values() == []


def test_nothing_is_sent_to_a_topic_that_was_created_again(sent: Sent) -> None:
    """The marker is of the topic that was deleted."""
    assert sent.send(7, 0)[1] is None
    with Topics(sent.settings) as topics:
        topics.delete(sent.target)
        topics.create(sent.target, 1)
    assert sent.send(8, RECORDS) == (0, RECREATED)
    assert sent.values() == []


def test_a_sink_may_change_its_topic(sent: Sent, forked: Send, make_topic: MakeTopic) -> None:
    """Also in the middle of a transfer: the old topic keeps what it has, and the rest goes to the new one."""
    assert sent.killed(forked, 7, 0, "begun", 3) == -signal.SIGKILL
    there = sent.values(settled=False)
    old, sent.target = sent.target, make_topic(1)
    assert sent.send(7, 0)[1] is None
    assert sent.send(8, RECORDS)[1] is None
    assert sent.values() == rows_of(range(len(there) // ROWS, 2 * RECORDS))
    assert [each.value for each in results_in(sent.settings, old)] == there


def test_a_task_may_have_the_rows_of_several_source_partitions(sent: Sent, make_topic: MakeTopic) -> None:
    """Each is sent by its own marker, and has its own headers; rows that are not together are not sent."""
    other = make_topic(1)
    commit_first_marker(sent._sending(0), other, 0, lambda: True)
    rows = pa.Table.from_batches([*batches(sent.source, 0), *batches(other, 0)]).combine_chunks()
    for number, records in ((7, RECORDS * ROWS), (7, 0)):
        sender = TopicSender(sent._sending(number))
        reports = [row for batch in sender(rows.to_batches()) for row in batch.to_pylist()]
        assert [(each["topic"], each["records"], each["problem"]) for each in reports] == [
            (sent.source, records, None),
            (other, records, None),
        ]
    found = [dict(each.headers)["sharequeue.result.topic"] for each in results_in(sent.settings, sent.target)]
    assert found == [name.encode() for name in (sent.source, other) for _ in range(RECORDS * ROWS)]
    apart = pa.concat_tables([rows, rows.slice(0, 1)]).to_batches()
    with pytest.raises(ValueError, match=f"the rows of {sent.source}-0 are not together in their task"):
        list(TopicSender(sent._sending(8))(apart))
