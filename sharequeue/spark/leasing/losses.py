"""Warn of records that retention removed before a group processed them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sharequeue.state import State

_log = logging.getLogger(__name__)


def report_losses(state: State, group: str, topics: Sequence[str]) -> int:
    """Return how many records of these topics the group has lost since this was last asked, by whomever; warn of
    them.
    """
    lost = state.runs.losses(group, topics)
    if lost:
        _log.warning("%s", words_of_losses(group, lost))
    return lost


def words_of_losses(group: str, lost: int) -> str:
    """Return what to say of lost records."""
    return (
        f"group {group} has lost {lost:,} records: retention removed them before they were processed. Give their "
        "topics a longer retention (retention.ms, retention.bytes), or run more often: a run has to come to a record "
        "before it is removed"
    )
