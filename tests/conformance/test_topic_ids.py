"""A topic that is deleted and made again: both engines observe, reset and refuse its ids alike."""

from __future__ import annotations

import random

import pytest

from sharequeue.database import Database
from sharequeue.errors import ShareError
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from sharequeue.testing import InMemoryState
from sharequeue.values import SharePartition

AT = SharePartition("g", "t", 0)


@pytest.mark.parametrize("seed", range(3))
def test_both_engines_know_the_same_ids_of_a_topic(private_database: Database, seed: int) -> None:
    """Observations of four ids and resets to them, old ones too, drawn at random: after each step the engines agree
    on the result, the id, the status and the start offset."""
    roll = random.Random(seed)  # noqa: S311
    ensure_group(private_database, "g")
    state, memory = State(private_database), InMemoryState()
    for engine in (state, memory):
        engine.initialize(AT, "id 0", 0, 1)
    for _ in range(40):
        topic_id, to = f"id {roll.randrange(4)}", roll.randint(0, 9)
        if roll.random() < 0.6:
            for engine in (state, memory):
                engine.observe(AT, topic_id, 0, 20, 20)
        else:
            refused: str | None = None
            try:
                state.administration.alter_offsets(AT, topic_id, to)
            except ShareError as error:
                refused = error.name
            [error_in_memory] = memory.groups.alter_offsets(
                "g", {("t", 0): to}, topic_ids={"t": topic_id}
            ).values()
            assert (error_in_memory and error_in_memory.name) == refused
        ours, theirs = state.figures.describe("g")[0], memory.figures.describe("g")[0]
        for name in ("topic_id", "status", "spso", "log_end", "state_epoch"):
            assert getattr(ours, name) == getattr(theirs, name), name
