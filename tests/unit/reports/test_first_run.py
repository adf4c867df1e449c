"""What a first run would find, if the broker refuses to show the topics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sharequeue.domain.errors import ShareError, TopicAuthorizationFailed
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import TopicsFound
from sharequeue.reports import first_run


class Broker:
    """A broker that refuses to show some topics, and has no others."""

    def __init__(self, refused: dict[str, ShareError]) -> None:
        self._refused = refused

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def ask(self, names: list[str]) -> TopicsFound:
        return TopicsFound({}, self._refused)

    def offsets_of(self, partitions: dict[str, int], refused: dict[str, ShareError]) -> dict[Any, Any]:
        return {}


def test_a_refused_topic_is_not_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that does not exist is left out; if the broker refuses to show it, nobody knows what is in it."""

    def found(refused: dict[str, ShareError]) -> Any:
        monkeypatch.setattr(first_run, "Topics", lambda *_, **__: Broker(refused))
        now = datetime(2026, 1, 1, tzinfo=UTC)
        return first_run.first_run_statuses(Settings.load(), "g", ["t"], "earliest", None, now)

    assert found({}) == []
    with pytest.raises(TopicAuthorizationFailed):
        found({"t": TopicAuthorizationFailed("no")})
