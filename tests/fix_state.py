"""A share-partition in a database of the test's own, for tests of the state's operations."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from sharequeue.values import SharePartition


@pytest.fixture
def at_configs() -> Mapping[str, str | int]:
    """Give the configs of the group of `at`, beside its dead-letter topic; a module has its own by this name."""
    return {"share.partition.max.record.locks": 2_000_000}


@pytest.fixture
def at(private_database: Database, at_configs: Mapping[str, str | int]) -> SharePartition:
    """Give a share-partition of group `g` with a dead-letter topic and 1,000 records in the log."""
    at = SharePartition("g", "t", 0)
    configs = {"errors.deadletterqueue.topic.name": "dlq.g", **at_configs}
    alter_group_configs(private_database, at.group_id, configs)
    state = State(private_database)
    state.initialize(at, "id", 0, 2)
    state.observe(at, "id", 0, 1000, 1000)
    return at
