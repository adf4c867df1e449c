"""A topic that is deleted and made again: both engines observe, reset and refuse its ids alike."""

from __future__ import annotations

import random

import pytest

from sharequeue.database import Database
from sharequeue.domain.errors import ShareError
from sharequeue.domain.values import SharePartition
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from tests import single
from tests.oracle import InMemoryShareGroups

AT = SharePartition("g", "t", 0)


@pytest.mark.parametrize("seed", range(3))
def test_both_engines_know_the_same_ids_of_a_topic(private_database: Database, seed: int) -> None:
    """Observations of four ids and resets to them, old ones too, drawn at random: after each step the engines agree
    on the result, the id, the status and the start offset."""
    roll = random.Random(seed)  # noqa: S311
    ensure_group(private_database, "g")
    state, memory = State(private_database), InMemoryShareGroups()
    state.initialize(AT, "id 0", 0, 1)
    memory.initialize(AT, "id 0", 0, 1)
    for _ in range(40):
        topic_id, to = f"id {roll.randrange(4)}", roll.randint(0, 9)
        if roll.random() < 0.6:
            single.observe(state, AT, topic_id, 0, 20, 20)
            memory.observe(AT, topic_id, 0, 20, 20)
        else:
            refused: str | None = None
            try:
                single.alter_offsets(state, AT, topic_id, to)
            except ShareError as error:
                refused = error.name
            altered = memory.alter_offsets("g", {("t", 0): to}, topic_ids={"t": topic_id})
            (error_in_memory,) = altered.values()
            assert (error_in_memory and error_in_memory.name) == refused
        ours, theirs = state.figures.describe("g")[0], memory.share_partition(AT)
        for name in ("topic_id", "spso", "log_end", "state_epoch"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert (ours.status == "topic_recreated") == theirs.recreated
