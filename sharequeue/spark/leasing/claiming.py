"""Which pipeline works on a group? One at a time: two would each take half of the records."""

from __future__ import annotations

from sharequeue.state import State


class GroupTaken(Exception):
    """Another pipeline works on this group; the message has both names. Nothing was leased."""


def claim_group(state: State, group: str, pipeline: str, replaces: str | None) -> None:
    """Note that a pipeline works on a group; the same one may run many times at once.

    Raises GroupTaken where another one does, unless `replaces` is its name.
    """
    found = state.runs.claim(group, pipeline, replaces)
    if found is not None and found != pipeline:
        raise GroupTaken(
            f"pipeline {found} works on group {group}, and this is pipeline {pipeline}: each would get a part of the "
            "records. Nothing was leased. Give this pipeline a group of its own. If it takes the place of the other "
            f"one, because it was renamed for example: `sharequeue run --replaces {found}`, `replaces={found!r}` in "
            f"Python, or `run: {{replaces: {found!r}}}` in a defs.yaml"
        )
