"""The offsets that a consumer reports are those of the present topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sharequeue import Settings
from sharequeue.consumer.log_ends import LogEnds
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import LogOffsets

AT = SharePartition("g", "t", 0)


def test_offsets_of_a_topic_that_was_made_again_meanwhile_are_not_used() -> None:
    """The id is the same before and after, or nobody knows of which topic they are."""
    told: list[str] = []
    state: Any = SimpleNamespace(observe=lambda seen: told.extend(each.topic_id for each in seen))
    reader: Any = SimpleNamespace(watch=lambda *_: None)
    settings: Any = Settings.load("/nowhere", bootstrap_servers="127.0.0.1:1")
    ends = LogEnds(settings, state)
    ids = iter(["old", "old", "old", "new", "new"])
    ends._topics = SimpleNamespace(  # type: ignore[assignment]
        ask=lambda names: SimpleNamespace(known={"t": SimpleNamespace(topic_id=next(ids))}),
        offsets_of=lambda *_: {("t", 0): LogOffsets(0, 5, 5)},
    )
    # The first time the id is asked for before and after; later the last answer is the one before.
    assert [ends.observe({AT: "old"}, reader) for _ in range(4)] == [True, True, False, True]
    assert told == ["old", "old", "new"]
