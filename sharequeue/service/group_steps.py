"""What of the service's work could not be done, for which group?

Whatever the service does for one group is a step of its own: when it fails because somebody else's transaction holds
the group's row, or for any reason of the database or the rules, that is logged and tried again at the next turn,
and the other groups go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from sharequeue.errors import NotCoordinator, ShareError

_log = logging.getLogger(__name__)


class GroupSteps:
    """The steps of one replica, from several threads."""

    def __init__(self) -> None:
        self.stuck: dict[str, str] = {}
        """Groups of which the last step failed, and why."""

    @contextmanager
    def step(self, group_id: str) -> Iterator[None]:
        """Do what is due for one group. Raises what concerns all groups: the database does not answer, or another
        replica has taken over."""
        try:
            yield
        except NotCoordinator:
            raise
        except ShareError as error:
            self._note(group_id, error.message)
        except DBAPIError as error:
            # Without an SQLSTATE the error is not the database's.
            if not getattr(error.orig, "pgcode", None):
                raise
            self._note(group_id, str(error.orig).splitlines()[0])
        else:
            if self.stuck.pop(group_id, None) is not None:
                _log.info("group %s goes on", group_id)

    def _note(self, group_id: str, reason: str) -> None:
        if self.stuck.get(group_id) != reason:
            _log.warning("group %s has to wait: %s", group_id, reason)
        self.stuck[group_id] = reason
