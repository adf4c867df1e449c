"""What is leased is handed out or given back, whatever comes between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.exc import OperationalError

from sharequeue.consumer.holdings import Holding
from sharequeue.state.many import AcquiredMany
from sharequeue.values import SharePartition
from tests.unit.consumer.stub import consumer_of, holding_of, put

AT = SharePartition("g", "t", 0)


class Many:
    """What the state answers, and what it was told."""

    def __init__(self, fetcher: Any) -> None:
        self.asked: list[tuple[list[SharePartition], UUID]] = []
        self.released: list[Any] = []
        self.acknowledged: list[Any] = []
        self.fails = False
        self.leases: tuple[Any, ...] = ()
        fetcher._state = SimpleNamespace(many=self, release=lambda *_: None)
        fetcher._ends = SimpleNamespace(readable=lambda *_: [AT], check_cluster=lambda: None)

    def _check(self) -> None:
        if self.fails:
            raise OperationalError("select", None, Exception("connection lost"))

    def acquire(self, part: Any, *_: Any, request_id: UUID, **__: Any) -> AcquiredMany:
        self.asked.append((list(part), request_id))
        self._check()
        return AcquiredMany(self.leases, {})

    def release(self, leases: Any, *, refund: bool) -> None:
        self._check()
        self.released += [(lease.token, refund) for lease in leases]

    def acknowledge(self, acknowledgements: Any) -> None:
        self._check()
        self.acknowledged += acknowledgements


def test_a_lease_whose_reply_was_lost_is_asked_for_again() -> None:
    """As the same request: the state answers with what it leased then."""
    with consumer_of() as consumer:
        fetcher = consumer._fetcher
        many = Many(fetcher)
        many.fails = True
        with pytest.raises(OperationalError):
            fetcher._lease({AT: "id"})
        many.fails, many.leases = False, (holding_of(0, 2).lease,)
        assert fetcher._lease({AT: "id"})
        assert not many.released
        fetcher._lease({AT: "id"})
        first, second, third = many.asked
        assert first == second
        assert third[1] != second[1]


def test_the_rest_of_a_lease_is_given_back_after_an_unsubscribe() -> None:
    """What nobody has seen of it gets its delivery back when the consumer ends."""
    with consumer_of(max_poll_records=1) as consumer:
        fetcher = consumer._fetcher
        many = Many(fetcher)
        holding: Holding = put(consumer, 0, 3)
        assert len(consumer.poll(0)) == 1
        fetcher.drop(frozenset())
        assert not many.released
        fetcher.release_all(consumer._in_hand)
        assert many.released == [(holding.lease.token, True)]
        assert [str(each) for [each] in (done.outcomes.values() for done in many.acknowledged)] == ["{[0,1)}"]
