"""Few leases are acknowledged in one call, many in parallel ones, and each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from sharequeue.domain.errors import InvalidRecordState, ShareError
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import Acknowledged, AcknowledgeType
from sharequeue.spark.outcomes import acknowledging
from sharequeue.spark.outcomes.acknowledging import CALLS_AT_ONCE, FEW_LEASES, FEW_RANGES, Sending
from sharequeue.state.calls import A_CALL, LeaseAcknowledgement
from tests.leases import lease_of

DONE = Acknowledged(spso=2, lag=0, accepted=2, released=0, rejected=0, gaps=0, exhausted=0)


class Calls:
    """Acknowledges, and keeps what it was called with; `refuse` says which leases are refused."""

    def __init__(self, refuse: Callable[[int], bool] = lambda lease_id: False) -> None:
        self.refuse = refuse
        self.made: list[tuple[UUID, frozenset[int]]] = []

    def acknowledge(
        self, given: Sequence[LeaseAcknowledgement], request_id: UUID
    ) -> list[Acknowledged | ShareError]:
        ids = [each.lease.lease_id for each in given]
        self.made.append((request_id, frozenset(ids)))
        return [InvalidRecordState("refused") if self.refuse(at) else DONE for at in ids]


def acknowledgements(leases: int, ranges: int = 1) -> list[LeaseAcknowledgement]:
    offsets = OffsetSet.of(*((2 * number, 2 * number + 1) for number in range(ranges)))
    return [
        LeaseAcknowledgement(lease_of(at, "t", at, (1, offsets)), {AcknowledgeType.ACCEPT: offsets})
        for at in range(leases)
    ]


@pytest.mark.parametrize(
    ("leases", "ranges", "calls"),
    [
        (0, 1, 0),
        (1, FEW_RANGES + 1, 1),
        (FEW_LEASES, 1, 1),
        (4, FEW_RANGES // 4, 1),
        (4, FEW_RANGES // 4 + 1, CALLS_AT_ONCE),
        (FEW_LEASES + 1, 1, CALLS_AT_ONCE),
        (A_CALL * CALLS_AT_ONCE + 1, 1, 2 * CALLS_AT_ONCE),
    ],
)
def test_little_goes_in_one_call(leases: int, ranges: int, calls: int) -> None:
    """More would each need a connection. Each lease is in one call, and a call has at most as many as it may."""
    keeper: Any = Calls()
    given = acknowledgements(leases, ranges)
    assert Sending(keeper).send(given) == [DONE] * leases
    assert len(keeper.made) == calls
    sent = [at for _, ids in keeper.made for at in ids]
    assert sorted(sent) == list(range(leases))
    assert all(len(ids) <= A_CALL for _, ids in keeper.made)


def test_what_was_refused_is_sent_again_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others are acknowledged before the error, also those of the same call."""
    monkeypatch.setattr(acknowledging, "FEW_LEASES", 1)
    odd = SimpleNamespace(refused=True)
    keeper: Any = Calls(lambda at: odd.refused and at % 2 == 1)
    given = acknowledgements(10)
    sending = Sending(keeper)
    with pytest.raises(InvalidRecordState):
        sending.send(given)
    assert sorted(sending.done) == [0, 2, 4, 6, 8]
    odd.refused = False
    keeper.made.clear()
    assert sending.send(given) == [DONE] * 10
    assert sorted(at for _, ids in keeper.made for at in ids) == [1, 3, 5, 7, 9]


def test_a_call_whose_end_is_not_known_keeps_its_request_id() -> None:
    """The state recognises it by this."""
    keeper: Any = Calls()
    answer = keeper.acknowledge

    def lost(given: Any, request_id: UUID) -> Any:
        answer(given, request_id)
        raise ConnectionError

    sending, given = Sending(keeper), acknowledgements(3)
    keeper.acknowledge = lost
    with pytest.raises(ConnectionError):
        sending.send(given)
    keeper.acknowledge = answer
    assert sending.send(given) == [DONE] * 3
    assert len({request_id for request_id, _ in keeper.made}) == 1
