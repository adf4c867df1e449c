"""ACLs: the operations that each principal may do with each group.

Kafka's ACLs (``kafka-acls.sh``) on resources of type GROUP, stored in Postgres and checked by the SQL functions
themselves (``sql/functions/20_groups/authorise.sql``). A denial wins. A group that no ACL covers is open to all
unless ``allow.everyone.if.no.acl.found`` is false. A principal that may read, alter or delete may also describe. The
principal is ``User:`` and the Postgres role that is logged in; a service that acts for others passes on their
principal with :func:`on_behalf_of`. There are no hosts: an ACL applies from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRequest

__all__ = [
    "OPERATIONS",
    "PATTERN_TYPES",
    "TOPIC_OPERATIONS",
    "Acl",
    "AclFilter",
    "Acls",
    "authorized_operations",
    "authorized_topic_operations",
    "on_behalf_of",
    "refused_topics",
]

Permission = Literal["ALLOW", "DENY"]

OPERATIONS = {
    "ALL": "All",
    "READ": "Read",
    "DESCRIBE": "Describe",
    "ALTER": "Alter",
    "DELETE": "Delete",
    "ALTER_CONFIGS": "AlterConfigs",
    "DESCRIBE_CONFIGS": "DescribeConfigs",
}
"""Kafka's operations on a group, and how its tools spell them. READ: acquire, acknowledge, renew, release, and
offsets reset (as Kafka's AlterShareGroupOffsets requires); DESCRIBE: view it; ALTER: pause, resume, force; DELETE:
the group or its offsets. Kafka itself has no ALTER on groups."""

TOPIC_OPERATIONS = ("ALL", "READ", "DESCRIBE")
"""The operations on a topic. READ: every use of its records, in any group; DESCRIBE: subscribe to it, view it."""

RESOURCE_TYPES = ("GROUP", "TOPIC")
PATTERN_TYPES = ("LITERAL", "PREFIXED")


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One rule. Raises InvalidRequest for a rule that Kafka would refuse."""

    principal: str
    operation: str
    permission: Permission
    pattern_type: str
    resource_name: str
    resource_type: str = "GROUP"

    def __post_init__(self) -> None:
        _check(self.resource_type, RESOURCE_TYPES, "resource type")
        if self.resource_type == "TOPIC":
            _check(self.operation, TOPIC_OPERATIONS, "operation on a topic")
        _check(self.operation, OPERATIONS, "operation")
        _check(self.permission, ("ALLOW", "DENY"), "permission")
        _check(self.pattern_type, PATTERN_TYPES, "pattern type")
        if not self.principal.startswith("User:") or self.principal == "User:":
            raise InvalidRequest(
                f"The principal {self.principal!r} is not valid: expected User:<name>, or User:* for "
                "everybody."
            )
        if not self.resource_name:
            raise InvalidRequest(
                "An ACL needs a group or a topic: expected its name, a prefix, or * for all."
            )


@dataclass(frozen=True, slots=True)
class AclFilter:
    """A selection of rules: those that match all given fields; None matches any value."""

    principal: str | None = None
    operation: str | None = None
    permission: Permission | None = None
    pattern_type: str | None = None
    resource_name: str | None = None
    resource_type: str | None = None


class Acls:
    """The rules in one database. Changing them needs the owner's or the service's role (ClusterAuthorizationFailed
    otherwise); every change is in the audit trail."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, matching: AclFilter | None = None) -> list[Acl]:
        """Return the rules that match, by group and principal."""
        return self._rules(
            "select principal, operation, permission, pattern_type, resource_name, resource_type"
            " from sharequeue.acl_list"
            " where principal = coalesce(:principal, principal) and operation = coalesce(:operation, operation)"
            " and permission = coalesce(:permission, permission)"
            " and pattern_type = coalesce(:pattern_type, pattern_type)"
            " and resource_name = coalesce(:resource_name, resource_name)"
            " and resource_type = coalesce(:resource_type, resource_type)"
            " order by resource_type, resource_name, pattern_type, principal, permission, operation",
            **_parameters(matching or AclFilter()),
        )

    def add(self, acl: Acl) -> bool:
        """Add a rule; return whether it was new."""
        rows = self._database.call(
            sa.text(
                "select sharequeue.add_acl(:principal, :operation, :permission, :pattern_type, :resource_name,"
                " :resource_type) as added"
            ),
            **_parameters(acl),
        )
        return bool(rows[0]["added"])

    def remove(self, matching: AclFilter, *, dry_run: bool = False) -> list[Acl]:
        """Remove the rules that match; return them. With ``dry_run`` nothing changes."""
        return self._rules(
            "select * from sharequeue.remove_acls(:principal, :operation, :permission, :pattern_type,"
            " :resource_name, :dry_run, :resource_type)",
            dry_run=dry_run,
            **_parameters(matching),
        )

    def allow_everyone_if_no_acl_found(self, allow: bool) -> bool:
        """Set whether a group or a topic that no rule covers is open to all; return what it was.

        It is Kafka's setting of that name; true by default.
        """
        rows = self._database.call(
            sa.text("select sharequeue.allow_everyone_if_no_acl_found(:allow) as before"), allow=allow
        )
        return bool(rows[0]["before"])

    def _rules(self, query: str, **parameters: Any) -> list[Acl]:
        return [Acl(**row) for row in self._database.call(sa.text(query), **parameters)]


def authorized_operations(database: Database, group_id: str) -> list[str]:
    """Return what the caller may do with a group (Kafka's AuthorizedOperations), by names of :data:`OPERATIONS`."""
    [row] = database.rows(
        sa.text("select sharequeue.authorized_operations(:group_id) as found"), group_id=group_id
    )
    return list(row["found"])


def authorized_topic_operations(database: Database, topic: str) -> list[str]:
    """Return what the caller may do with a topic, of READ and DESCRIBE."""
    [row] = database.rows(
        sa.text("select sharequeue.authorized_topic_operations(:topic) as found"), topic=topic
    )
    return list(row["found"])


def refused_topics(database: Database, topics: Iterable[str], operation: str) -> set[str]:
    """Return those of the topics with which the caller may not do this operation, in one query."""
    names = sorted(set(topics))
    if not names:
        return set()
    rows = database.rows(
        sa.text(
            "select t.name from unnest(cast(:topics as text[])) as t (name)"
            " where not :operation = any (sharequeue.authorized_topic_operations(t.name))"
        ),
        topics=names,
        operation=operation,
    )
    return {row["name"] for row in rows}


@contextmanager
def on_behalf_of(database: Database, principal: str) -> Iterator[sa.Connection]:
    """Open a transaction in which a trusted role (service or owner) acts as another principal.

    The database ignores the principal that any other role gives.
    """
    with database.transaction() as connection:
        connection.execute(
            sa.text("select set_config('sharequeue.principal', :principal, true)"), {"principal": principal}
        )
        yield connection


def _parameters(of: Acl | AclFilter) -> dict[str, str | None]:
    return {
        "principal": of.principal,
        "operation": of.operation,
        "permission": of.permission,
        "pattern_type": of.pattern_type,
        "resource_name": of.resource_name,
        "resource_type": of.resource_type,
    }


def _check(value: str, known: Any, what: str) -> None:
    if value not in known:
        raise InvalidRequest(f"Unknown {what} {value!r}: expected one of {', '.join(known)}.")
