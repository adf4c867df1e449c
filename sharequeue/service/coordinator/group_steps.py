"""Turns among groups, and a record of the work that failed for each group.

The service's work for one group is a separate step: if it fails because another transaction holds the group's rows,
or for any other reason, the error is logged, the step is repeated at the next turn, and the other groups go on. The
time of a turn is limited for any number of groups: the next turn continues where it stopped. Groups whose last step
failed come last, so that they do not delay others.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from sharequeue.database.sqlstates import sqlstate
from sharequeue.domain.errors import NotCoordinator, ShareError, first_line

_log = logging.getLogger(__name__)

TURN_SECONDS = 5.0
"""The time limit of one kind of step in a turn, for all groups together."""
STUCK_SECONDS = 1.0
"""The time limit after that for the groups whose last step failed."""


class GroupSteps:
    """The steps of one replica, from several threads; each kind of step belongs to one thread."""

    def __init__(self, turn_seconds: float = TURN_SECONDS, stuck_seconds: float = STUCK_SECONDS) -> None:
        self._seconds = {False: turn_seconds, True: stuck_seconds}
        self._lock = threading.Lock()
        self._stuck: dict[str, dict[str, str]] = {}  # by kind of step, by group
        self._last: dict[tuple[str, bool], str] = {}  # the last group of a turn that ended early

    @property
    def stuck(self) -> dict[str, str]:
        """Groups for which the last step of some kind failed, and the reasons."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for of_kind in self._stuck.values():
                for group_id, reason in of_kind.items():
                    found.setdefault(group_id, []).append(reason)
        return {group_id: "; ".join(dict.fromkeys(reasons)) for group_id, reasons in found.items()}

    def in_turn(self, kind: str, due: Iterable[str]) -> Iterator[str]:
        """Yield the groups for which a kind of step is due, while there is time; the others follow at the next
        turn."""
        groups = sorted(set(due))
        with self._lock:
            stuck = self._stuck.setdefault(kind, {})
            for gone in stuck.keys() - set(groups):
                del stuck[gone]
            failed = set(stuck)
        yield from self._part(kind, [group for group in groups if group not in failed], stuck=False)
        yield from self._part(kind, [group for group in groups if group in failed], stuck=True)

    def _part(self, kind: str, groups: list[str], *, stuck: bool) -> Iterator[str]:
        first = bisect_right(groups, self._last.pop((kind, stuck), ""))
        began = time.monotonic()
        for done, group_id in enumerate(groups[first:] + groups[:first], 1):
            yield group_id
            if done < len(groups) and time.monotonic() - began > self._seconds[stuck]:
                self._last[kind, stuck] = group_id
                return

    @contextmanager
    def step(self, kind: str, group_id: str) -> Iterator[None]:
        """Run the step of one group. Raises only errors that concern all groups: the database does not respond, or
        another replica has taken over."""
        try:
            yield
        except NotCoordinator:
            raise
        except ShareError as error:
            self._note(kind, group_id, error.message)
        except DBAPIError as error:
            # Without an SQLSTATE the error is not the database's.
            if not sqlstate(error):
                raise
            self._note(kind, group_id, first_line(error.orig or error))
        except SQLAlchemyError:
            raise
        except Exception as error:
            _log.exception("a step of group %s failed", group_id, extra={"group": group_id})
            self._note(kind, group_id, f"{type(error).__name__}: {error}")
        else:
            with self._lock:
                went_on = self._stuck.get(kind, {}).pop(group_id, None)
            if went_on is not None:
                _log.info("group %s continues", group_id, extra={"group": group_id})

    def note(self, kind: str, failed: Mapping[str, str]) -> None:
        """Record the groups for which a kind of step failed that is one call for all groups."""
        with self._lock:
            before = set(self._stuck.setdefault(kind, {}))
        for group_id, reason in failed.items():
            self._note(kind, group_id, reason)
        for group_id in before - set(failed):
            with self.step(kind, group_id):
                pass

    def _note(self, kind: str, group_id: str, reason: str) -> None:
        with self._lock:
            of_kind = self._stuck.setdefault(kind, {})
            news = of_kind.get(group_id) != reason
            of_kind[group_id] = reason
        if news:
            _log.warning("group %s has to wait: %s", group_id, reason, extra={"group": group_id})
