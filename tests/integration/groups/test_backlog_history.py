"""Members of a group that is assigned by backlog come and go; the thousand times are in `deep/deep_backlog.py`."""

from __future__ import annotations

from sharequeue.database import Database
from sharequeue.kafka.topics import Topics
from tests.integration.groups.backlog_history import Group


def test_members_come_and_go(private_database: Database, topics: Topics) -> None:
    """By what each was told, after each of eighty changes: everything has somebody, everybody has something, nobody
    has too much, and what is well enough stays as it is."""
    group = Group(private_database, topics, seed=1)
    for _ in range(80):
        group.step(most=12)
