"""A group that is assigned by backlog and changed a thousand times leaves no share-partition without a member."""

from __future__ import annotations

import random

import pytest

from sharequeue.database import Database
from sharequeue.kafka.topics import Topics
from tests.integration.groups.backlog_history import Group


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("most", "changes"), [(6, 800), (40, 200)])
def test_members_come_and_go(
    private_database: Database, topics: Topics, most: int, changes: int, told: list[str]
) -> None:
    """As in the ordinary run, a thousand changes: with fewer members than share-partitions, and with many more."""
    seed = random.SystemRandom().randrange(10**6)
    told.append(f"assigned by backlog, {most} members at most: seed {seed}")
    group = Group(private_database, topics, seed)
    for _ in range(changes):
        group.step(most)
    told[-1] += (
        f", {changes} changes, nobody starved; shifts of the backlog moved {group.moved} share-partitions"
    )
