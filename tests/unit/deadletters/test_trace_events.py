"""Where a record is now, in the words of a trace."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sharequeue.deadletters.record_search import LoggedRecord
from sharequeue.deadletters.trace_events import status_events
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import LogOffsets
from sharequeue.state.record_history import RecordDelivery, RecordHistory

AT, MOMENT = SharePartition("g", "t", 0), datetime(2026, 1, 1, 12, tzinfo=UTC)
GONE = "retention has removed the record: the group counts it as lost when it next reads the log's start"


def _now(
    status: str, *, start: int = 0, outcome: str | None = None, **values: object
) -> list[tuple[str, str | None]]:
    """The events of record 4, whose last delivery has this outcome, in a log of ten."""
    deliveries = () if outcome is None else (RecordDelivery(7, "m", 1, MOMENT, MOMENT, MOMENT, outcome),)
    history = RecordHistory(AT, 4, "id", 0, 4, status, deliveries=deliveries, **values)  # type: ignore[arg-type]
    logged = LoggedRecord("id", LogOffsets(start, 10, 10))
    events = status_events(("t", 0, 4), history, logged, lambda: None, has_letters=False)
    return [(each.event, each.detail) for each in events]


def test_a_record_that_was_not_leased_names_the_first_such_offset() -> None:
    """That is the end of what was leased, also if nothing was, and after a reset that of what was leased since."""
    assert _now("not leased") == [("not leased", "the group has leased no offset from 4 on")]
    since = "since the offsets were reset at 2026-01-01 12:00:00 UTC"
    ((_, said),) = _now("not leased", outcome="reset", resets=(MOMENT,))
    assert said == f"the group has leased no offset from 4 on {since}"


@pytest.mark.parametrize("status", ["available", "not leased"])
def test_what_retention_has_taken_is_not_delivered(status: str) -> None:
    """Before the group has seen it, and not of a topic that was created again."""
    assert _now(status, start=5, outcome="released") == [(status, GONE)]
    ((_, said),) = _now(status, start=4, outcome="released")
    assert said != GONE


@pytest.mark.parametrize(
    ("status", "outcome", "said"),
    [
        ("lost", "released", "retention removed the record before it was processed"),
        ("lost", "lost", None),
        ("lost", None, "retention removed the record before it was processed"),
        ("overtaken", "overtaken", None),
        ("accepted", "accepted", None),
        ("accepted", None, "its delivery is no longer known"),
        ("archived", "exhausted", None),
        ("archived", "released", "it was given up: rejected"),
    ],
)
def test_an_end_is_an_event_unless_the_last_delivery_shows_it(
    status: str, outcome: str | None, said: str | None
) -> None:
    """A record that was lost while it waited for its next delivery has no delivery that was lost."""
    assert _now(status, outcome=outcome, cause="rejected") == ([] if said is None else [(status, said)])
