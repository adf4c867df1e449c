"""The error of a round whose records have no outcome, or an unknown one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.spark.handler import HandlerError
from sharequeue.spark.outcomes.outcomes import UNSEEN, SeenOutcomes, refuse_without_outcome

LEASE: Any = SimpleNamespace(lease_id=1, share_partition="orders-0")
ONE = OffsetSet.of((7, 8))


def test_the_error_names_without_row_only_for_records_without_a_row() -> None:
    """It is the outcome of a record without a row; an unknown outcome is corrected in the handler."""
    unknown = SeenOutcomes({}, 0, ONE, 1, unknown={"acept": ONE})
    with pytest.raises(HandlerError, match=r"^1 record \(orders-0 7\) got the outcome 'acept'") as of_unknown:
        refuse_without_outcome([LEASE], {1: unknown}, {1: EMPTY})
    assert str(of_unknown.value).endswith("Nothing of this round was acknowledged. Correct the handler")
    with pytest.raises(HandlerError, match=r"^1 record \(orders-0 7\) got no outcome") as of_none:
        refuse_without_outcome([LEASE], {1: UNSEEN}, {1: ONE})
    assert str(of_none.value).endswith("without_row= is the outcome of a record without a row")
