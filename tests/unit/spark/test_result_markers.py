"""What the marker of a source partition says about a transfer, without a broker."""

from __future__ import annotations

import pytest

from sharequeue.deadletters.outbox import Marker
from sharequeue.spark.sinks.kafka.sending import LOST, OVERTAKEN, RECREATED, problem_of


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        (None, LOST),
        (Marker(0, "0", "a", "1"), None),
        (Marker(6, "6", "a", "1", 9), None),
        (Marker(7, "7", "a", "1", 3), None),
        (Marker(8, "8", "a", "1", 3), OVERTAKEN),
        (Marker(6, "6", "a", "0", 9), RECREATED),
        (Marker(7, "7", "a", "0", 3), RECREATED),
        (Marker(6, "6", "b", "2", 9), None),
        (Marker(7, "7", "b", "2", 3), None),
        (Marker(8, "8", "b", "2", 3), OVERTAKEN),
        (Marker(0, ""), None),
        (Marker(9, ""), OVERTAKEN),
    ],
)
def test_a_marker_allows_a_transfer_or_an_operator_decides(
    marker: Marker | None, expected: str | None
) -> None:
    """Transfer 7 goes to topic a with id 1. A marker of another name is of the topic that the sink had before, so
    that it shows what was sent; one of this name and another id is of a topic that was deleted. An offset without
    metadata is a decision."""
    assert problem_of(marker, "a", "1", 7) == expected
