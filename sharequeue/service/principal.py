"""The rights of a request's principal on groups and topics.

A group without an ACL is open to every principal (unless `allow.everyone.if.no.acl.found` is false), and a group with
an ACL is closed unless the ACL names the principal. `admission` finds the principal of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.domain.errors import (
    GroupAuthorizationFailed,
    InvalidGroupId,
    ShareError,
    TopicAuthorizationFailed,
)
from sharequeue.domain.names import shown
from sharequeue.groups.acls import authorized_operations, on_behalf_of, refused_topics
from sharequeue.groups.group_names import group_topics
from sharequeue.kafka.topics import Topics
from sharequeue.service.admission import ANONYMOUS

__all__ = ["Principal"]


@dataclass(frozen=True, slots=True)
class Principal:
    """A principal that sends requests, with the servers that these use."""

    database: Database
    topics: Topics
    name: str = ANONYMOUS

    @contextmanager
    def acting(self) -> Iterator[Joined]:
        """Yield one transaction in which the database's access rules are those of the principal."""
        with on_behalf_of(self.database, self.name) as connection:
            yield Joined(connection)

    def require(self, group_id: str, operation: str) -> list[str]:
        """Return the allowed operations on a group. Raises GroupAuthorizationFailed if this one is not allowed."""
        with self.acting() as database:
            allowed = authorized_operations(database, group_id)
        if operation not in allowed:
            raise GroupAuthorizationFailed(f"{self.name} may not {operation} group {shown(group_id)}")
        return allowed

    def require_whole(self, group_id: str) -> None:
        """Raise an authorization error unless the principal may describe the group and all its topics.

        InvalidGroupId for an id that no group can have, GroupAuthorizationFailed for the group,
        TopicAuthorizationFailed for a topic that it reads or subscribes to.
        """
        if "\x00" in group_id:
            raise InvalidGroupId("The group id has a NUL character: no group can have such an id.")
        self.require(group_id, "DESCRIBE")
        self.require_topics(group_topics(self.database, group_id))

    def refused_topics(self, topics: Iterable[str], operation: str) -> dict[str, ShareError]:
        """Return the errors of the topics for which the principal may not do this."""
        with self.acting() as database:
            refused = refused_topics(database, topics, operation)
        return {
            topic: TopicAuthorizationFailed(f"{self.name} may not {operation} topic {shown(topic)}")
            for topic in sorted(refused)
        }

    def require_topics(self, topics: Iterable[str]) -> None:
        """Raise TopicAuthorizationFailed if the principal may not describe one of a group's topics. It names none:
        the caller has not named them either."""
        if self.refused_topics(topics, "DESCRIBE"):
            raise TopicAuthorizationFailed(
                f"The group has topics that {self.name} may not DESCRIBE: ask their owner for an ACL"
            )
