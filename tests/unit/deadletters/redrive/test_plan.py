"""What a redrive would send, without servers: letters whose record is gone are counted, and not sent."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.redrive import redrive as module
from sharequeue.deadletters.redrive.batches import HandledLetters
from sharequeue.deadletters.redrive.held_keys import HoldingLetters
from sharequeue.deadletters.redrive.redrive import Redrive, RedriveReport
from sharequeue.deadletters.redrive.selection import RedriveRefused, Selection
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import LogOffsets, TopicInfo
from sharequeue.state.dead_letters import FreedKeys, HoldingBatch

LOGS = {"dlq.t": LogOffsets(0, 9, 9), "orders": LogOffsets(2, 5, 5), "anew": LogOffsets(0, 9, 9)}


class Broker:
    """Three topics of one partition each."""

    def __init__(self, settings: Settings) -> None: ...

    def cluster_id(self) -> str:
        """Return any id."""
        return "c"

    def info(self, topic: str) -> TopicInfo:
        """Return the topic with one partition."""
        return TopicInfo(f"id-{topic}", 1)

    def describe(self, topics: Iterable[str]) -> Mapping[str, TopicInfo]:
        """Return those that are there."""
        return {topic: self.info(topic) for topic in topics if topic in LOGS}

    def names(self) -> list[str]:
        """Return those that are there."""
        return list(LOGS)

    def offsets(self, topic: str) -> dict[int, LogOffsets]:
        """Return the log of the one partition."""
        return {0: LOGS[topic]}


class Batches:
    """A database without redrives; the topic `anew` has another id than it had."""

    asked: ClassVar[list[uuid.UUID]] = []

    def __init__(self, database: Any, topic: str, topic_id: str) -> None:
        self.topic_id = topic_id

    def handled(self) -> dict[int, HandledLetters]:
        """Return none."""
        return {}

    def group_names(self) -> list[str]:
        """Return none."""
        return []

    def groups_of(self, topics: Iterable[str]) -> dict[str, set[str]]:
        """Return none."""
        return {}

    def is_source(self, topic: str, topic_id: str) -> bool:
        """Whether it is as it was."""
        return topic != "anew"

    def open_partitions(self) -> list[int]:
        """Return none."""
        return []

    def holding(self) -> HoldingLetters:
        """Return none."""
        return HoldingLetters()

    def held_behind(self, letters: Iterable[HoldingBatch]) -> FreedKeys:
        """Return none."""
        return FreedKeys(len(list(letters)))

    def free_keys(self, letters: Iterable[HoldingBatch]) -> FreedKeys:
        """Return none."""
        return FreedKeys(len(list(letters)))

    def begin(self, *_: Any, **__: Any) -> uuid.UUID:
        """Write down who asked."""
        self.asked.append(uuid.uuid4())
        return self.asked[-1]

    def published(self) -> list[Any]:
        """Return none."""
        return []

    def plan(self, redrive_id: uuid.UUID, planned: Iterable[Any]) -> None: ...

    def end(self, redrive_id: uuid.UUID) -> None: ...


def letter(at: int, topic: str, offset: int, copy: bool = False, topic_id: str | None = None) -> DeadLetter:
    """A letter at an offset of the dead-letter topic, for a record; without a topic id it is a broker's."""
    headers = (
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"%d" % offset),
        ("__dlq.errors.group", b"g"),
        *([("sharequeue.source.topic.id", topic_id.encode())] if topic_id else []),
    )
    return DeadLetter(
        partition=0,
        offset=at,
        key=None,
        value=b"v" if copy else None,
        headers=headers,
        written_ms=None,
    )


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> list[DeadLetter]:
    """What the dead-letter topic holds."""
    found: list[DeadLetter] = []
    Batches.asked.clear()
    state = SimpleNamespace(administration=SimpleNamespace(check_cluster=lambda _: None))
    monkeypatch.setattr(module, "Topics", Broker)
    monkeypatch.setattr(module, "RedriveBatches", Batches)
    monkeypatch.setattr(module, "State", lambda _: state)
    monkeypatch.setattr(module, "read_dead_letters", lambda *_, **__: iter(found))
    return found


def redrive(**options: Any) -> Redrive:
    return Redrive(Settings({}), None, "dlq.t", Selection(), **options)  # type: ignore[arg-type]


def test_a_letter_whose_record_is_gone_is_not_sent(letters: list[DeadLetter]) -> None:
    """Before the start of its log, or past its end, or in a topic of the same name that was made since; the
    copy of a broker is enough, and counted because it has no headers."""
    letters += [
        letter(0, "orders", 1),
        letter(1, "orders", 2),
        letter(2, "orders", 4),
        letter(3, "orders", 5),
        letter(4, "orders", 0, copy=True),
        letter(5, "anew", 3),
        letter(6, "anew", 4, copy=True),
        letter(7, "orders", 3, topic_id="id-former"),
        letter(8, "anew", 5, topic_id="id-anew"),
    ]
    plan = redrive().plan()
    assert (plan.chosen, plan.letters) == ({0: OffsetSet.parse("{[1,3),[4,5),[6,7),[8,9)}")}, 5)
    assert plan.gone == 4
    assert plan.targets == Counter({"orders": 3, "anew": 2})
    assert plan.causes == Counter({"unknown": 5})
    assert plan.without_headers == 2
    assert redrive(target="orders").plan().targets == Counter({"orders": 5})


def test_a_redrive_with_nothing_to_send_makes_no_batch(letters: list[DeadLetter]) -> None:
    """Here there is nothing that could open one. Who asked is written down all the same."""
    letters += [letter(0, "orders", 0), letter(1, "orders", 1)]
    work = redrive()
    report = work.run(work.plan())
    assert report == RedriveReport(report.redrive_id, gone=2, seconds=report.seconds)
    assert Batches.asked == [report.redrive_id]


def test_a_letter_that_names_no_possible_topic_is_refused_by_name(letters: list[DeadLetter]) -> None:
    """Any program may write it: the message says what to do, as for a topic that does not exist; others can be
    chosen, and without a copy its record is gone."""
    letters += [letter(0, "no topic!", 0), letter(1, "orders", 2)]
    assert (redrive().plan().letters, redrive().plan().gone) == (1, 1)
    letters.append(letter(2, "no topic!", 1, copy=True))
    with pytest.raises(
        RedriveRefused, match=r"no topic 'no topic!' to send to.*choose letters of other topics"
    ):
        redrive().plan()


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 0.0, -1.0, 1e-9])
def test_an_invalid_rate_is_refused(letters: list[DeadLetter], rate: float) -> None:
    """Before anything is asked."""
    with pytest.raises(ValueError, match=r"rate is .*: expected a finite number, 0\.001 or more"):
        redrive(rate=rate)
