"""What `dlq redrive` and `dlq discard` print alike: the keys that go on, and a selection without letters."""

from __future__ import annotations

from typing import Protocol

from sharequeue.cli.output import Output
from sharequeue.deadletters.hidden import HiddenRecords
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.names import plural
from sharequeue.state.dead_letters import FreedKeys

__all__ = ["FREED", "freed_cells", "warn_if_none", "warn_of_freed"]

FREED = ("FREED-KEYS", "FREED-RECORDS")
"""The columns of the keys that go on, and of the held records behind them."""


class _Plan(Protocol):
    """A plan for the letters of a selection."""

    @property
    def selected(self) -> int: ...
    @property
    def has_letters(self) -> bool: ...
    @property
    def hidden(self) -> tuple[HiddenRecords, ...]: ...


def freed_cells(freed: FreedKeys) -> dict[str, int]:
    """Return the cells of the columns `FREED`."""
    return {"freed_keys": freed.keys, "freed_records": freed.records}


def warn_of_freed(output: Output, freed: FreedKeys, then: str) -> None:
    """Say which keys a dry run would let go on."""
    if freed:
        output.warn(
            f"{plural(freed.keys, 'key')} that these letters hold would go on, with "
            f"{plural(freed.records, 'held record')}; {then}"
        )


def warn_if_none(output: Output, topic: str, selection: Selection, plan: _Plan) -> None:
    """Warn if a selection takes no letter."""
    if plan.selected:
        return
    if plan.has_letters:
        output.warn(f"{topic} has dead letters, but none of this selection: {selection}")
    elif not plan.hidden:
        output.warn(f"{topic} has no dead letters: check the topic's name")
