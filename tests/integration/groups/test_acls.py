"""Kafka's ACLs on groups, asked by the SQL functions themselves."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.domain.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidRequest,
    TopicAuthorizationFailed,
)
from sharequeue.domain.settings import RoleNames
from sharequeue.domain.values import AcknowledgeType, DeadLetterBatch, SharePartition
from sharequeue.groups.acls import Acl, AclFilter, Acls, on_behalf_of
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from tests import single

PURPOSES = ("owner", "service", "worker", "reader")


class Cluster:
    """A private database with roles of its own; `ann` and `bob` are workers."""

    def __init__(self, superuser: Database) -> None:
        suffix = uuid.uuid4().hex[:8]
        self.superuser = superuser
        self.names = RoleNames(*(f"{purpose}_{suffix}" for purpose in PURPOSES))
        migrate(superuser, roles=self.names)
        self.ann_name, self.bob_name, service = f"ann_{suffix}", f"bob_{suffix}", f"service_login_{suffix}"
        self.ann = self._login(self.ann_name, self.names.worker)
        self.bob = self._login(self.bob_name, self.names.worker)
        self.service = self._login(service, self.names.service)
        self.acls = Acls(self.service)

    def _login(self, name: str, role: str) -> Database:
        with self.superuser.transaction() as connection:
            connection.exec_driver_sql(f"create role {name} login password 'secret' in role {role}")
        url = self.superuser.engine.url.set(username=name, password="secret")
        return Database(url.render_as_string(hide_password=False))

    def group(self, group: str, topic: str) -> SharePartition:
        """An initialised share-partition with a hundred records."""
        ensure_group(self.service, group)
        at = SharePartition(group, topic, 0)
        State(self.service).initialize(at, "id", 0, 1)
        single.observe(State(self.service), at, "id", 0, 100, 100)
        return at

    def allow(self, principal: str, operation: str, group: str, pattern: str = "LITERAL") -> None:
        self.acls.add(Acl(principal, operation, "ALLOW", pattern, group))

    def deny(self, principal: str, operation: str, group: str, pattern: str = "LITERAL") -> None:
        self.acls.add(Acl(principal, operation, "DENY", pattern, group))

    def close(self) -> None:
        for each in (self.ann, self.bob, self.service):
            each.close()


@pytest.fixture
def cluster(private_database: Database) -> Iterator[Cluster]:
    """Give a database with two workers and a service."""
    made = Cluster(private_database)
    try:
        yield made
    finally:
        made.close()


def _may(database: Database, at: SharePartition) -> bool:
    """Whether a worker may lease."""
    try:
        single.acquire(State(database), at, "member", None, 1)
    except GroupAuthorizationFailed:
        return False
    return True


def test_without_acls_everybody_may_and_with_one_only_who_is_named(
    cluster: Cluster, group: str, topic: str
) -> None:
    """As on a broker without an authorizer; the first ACL on a group closes it to all that none allows."""
    at = cluster.group(group, topic)
    assert _may(cluster.ann, at)
    assert _may(cluster.bob, at)
    cluster.allow(f"User:{cluster.ann_name}", "READ", group)
    assert _may(cluster.ann, at)
    assert not _may(cluster.bob, at)
    assert cluster.acls.remove(AclFilter(resource_name=group)) == [
        Acl(f"User:{cluster.ann_name}", "READ", "ALLOW", "LITERAL", group)
    ]
    assert _may(cluster.bob, at)


def test_a_denial_wins(cluster: Cluster, group: str, topic: str) -> None:
    """Over an allowance for everybody, whichever was there first; a denial of all is one of each."""
    at = cluster.group(group, topic)
    cluster.deny(f"User:{cluster.bob_name}", "READ", group)
    cluster.allow("User:*", "ALL", "*")
    assert _may(cluster.ann, at)
    assert not _may(cluster.bob, at)
    cluster.deny("User:*", "ALL", group)
    assert not _may(cluster.ann, at)


def test_topics_have_acls_of_their_own(cluster: Cluster, group: str, topic: str) -> None:
    """Whoever works on records of a topic needs READ on it, in whatever group; other topics are open as before."""
    at, other = cluster.group(group, topic), cluster.group(group, f"{topic}.other")
    state = State(cluster.bob)
    held = single.acquire(state, at, "member", None, 1)
    assert held is not None
    cluster.acls.add(Acl(f"User:{cluster.ann_name}", "READ", "ALLOW", "LITERAL", topic, "TOPIC"))
    assert _may(cluster.ann, at)
    assert _may(cluster.bob, other)
    for refused in (
        lambda: single.acquire(state, at, "member", None, 1),
        lambda: single.acknowledge(state, held, {AcknowledgeType.ACCEPT: held.offsets}),
        lambda: single.renew(state, held),
        lambda: single.observe(state, at, "id", 0, 100, 100),
        lambda: state.initialize(SharePartition(group, topic, 1), "id", 0, 1),
        lambda: single.acquire(state, SharePartition(group, topic, 9), "member", None, 1),
        lambda: state.administration.delete_offsets(group, topic),
    ):
        with pytest.raises(TopicAuthorizationFailed, match=f"may not READ topic {topic}"):
            refused()
    assert cluster.acls.remove(AclFilter(resource_name=topic, resource_type="GROUP")) == []
    [gone] = cluster.acls.remove(AclFilter(resource_name=topic, resource_type="TOPIC"))
    assert gone.resource_type == "TOPIC"
    assert _may(cluster.bob, at)


def test_prefixes_and_the_wildcard(cluster: Cluster, group: str, topic: str) -> None:
    """A prefixed ACL covers what begins so, a literal * every group, and a pattern's % is only a character."""
    at = cluster.group(f"{group}.orders", topic)
    other = cluster.group(f"{group}-other", topic)
    cluster.allow(f"User:{cluster.ann_name}", "READ", f"{group}.", "PREFIXED")
    assert _may(cluster.ann, at)
    assert not _may(cluster.bob, at)
    assert _may(cluster.bob, other)
    cluster.allow("User:*", "READ", f"{group}%", "PREFIXED")
    assert not _may(cluster.bob, at)
    cluster.allow(f"User:{cluster.bob_name}", "READ", "*")
    assert _may(cluster.bob, at)
    assert not _may(cluster.ann, other)


def test_groups_without_acls_can_be_closed(cluster: Cluster, group: str, topic: str) -> None:
    """allow.everyone.if.no.acl.found = false closes groups there are and groups to come; the service, as a super
    user, goes on."""
    at = cluster.group(group, topic)
    assert cluster.acls.allow_everyone_if_no_acl_found(False) is True
    later = cluster.group(f"{group}-later", topic)
    assert not _may(cluster.ann, at)
    assert not _may(cluster.ann, later)
    assert _may(cluster.service, at)
    with pytest.raises(GroupAuthorizationFailed):
        single.acquire(State(cluster.ann), SharePartition("no-such-group", topic, 0), "member", None, 1)
    assert cluster.acls.allow_everyone_if_no_acl_found(True) is False
    assert _may(cluster.ann, later)


@pytest.mark.rule("R-AD-1", "R-AD-2", "R-AD-5", "R-AK-1")
def test_every_operation_asks(cluster: Cluster, group: str, topic: str) -> None:
    """READ leases and answers, ALTER pauses and forces, DELETE deletes: who lacks it is refused, as a row or as an
    error of Kafka's name, and nothing has changed."""
    at = cluster.group(group, topic)
    state, mine = State(cluster.bob), State(cluster.ann)
    lease = single.acquire(mine, at, "member", None, 5)
    assert lease is not None
    cluster.allow(f"User:{cluster.ann_name}", "ALL", group)
    cluster.allow(f"User:{cluster.bob_name}", "DESCRIBE", group)
    before = cluster.superuser.rows(sa.text("select * from sharequeue.share_partitions"))
    for refused in (
        lambda: single.acquire(state, at, "member", None, 5),
        lambda: single.acknowledge(state, lease, {}),
        lambda: single.renew(state, lease),
        lambda: single.release(state, lease),
        lambda: state.initialize(SharePartition(group, topic, 1), "id", 0, 1),
        lambda: single.observe(state, at, "id", 0, 200, 200),
        lambda: state.dead_letters.open(at, 1),
        lambda: state.dead_letters.close(DeadLetterBatch(at, 1, "id", ())),
        lambda: state.administration.pause(group, "mine now"),
        lambda: single.alter_offsets(state, at, "id", 3),
        lambda: state.administration.delete_offsets(group, topic),
        lambda: state.administration.delete_group(group),
    ):
        with pytest.raises(GroupAuthorizationFailed, match=f"User:{cluster.bob_name} may not"):
            refused()
    for call in (
        "acknowledge_batches(:group, :topic, 0, 1, 'member', null, null, null, '{0}', '{0}', '{1}')",
        "force(:group, :topic, 0, '{[0,5)}', 'release', true)",
    ):
        [row] = cluster.bob.rows(
            sa.text(f"select * from sharequeue.{call}"),  # noqa: S608 - one of two
            group=group,
            topic=topic,
        )
        assert row["error_code"] == 30, (call, row)
    assert cluster.superuser.rows(sa.text("select * from sharequeue.share_partitions")) == before
    assert single.renew(mine, lease) >= lease.expires_at


def test_only_a_trusted_role_speaks_for_others(cluster: Cluster, group: str, topic: str) -> None:
    """A principal passed on by the service is asked instead of the service's own; from a worker it is ignored; and it
    ends with the transaction."""
    at = cluster.group(group, topic)
    cluster.allow(f"User:{cluster.ann_name}", "READ", group)
    call = sa.text("select error_code from sharequeue.acquire(:group, :topic, 0, 1, 'member', null, 1)")
    named = {"group": group, "topic": topic}
    for who, principal, result in (
        (cluster.service, f"User:{cluster.bob_name}", 30),
        (cluster.service, f"User:{cluster.ann_name}", 0),
        (cluster.bob, f"User:{cluster.ann_name}", 30),
        (cluster.ann, f"User:{cluster.bob_name}", 0),
    ):
        with on_behalf_of(who, principal) as connection:
            assert connection.scalar(call, named) == result
    assert _may(cluster.service, at)
    told = sa.text("select sharequeue.principal() as principal")
    assert cluster.service.rows(told)[0]["principal"] == f"User:{cluster.service.engine.url.username}"
    with pytest.raises(ClusterAuthorizationFailed), on_behalf_of(cluster.service, "User:bob") as connection:
        connection.execute(sa.text("select sharequeue.raise_state_epochs()"))


def test_acls_are_changed_by_super_users_and_written_down(cluster: Cluster, group: str) -> None:
    """Adding twice is adding once; a dry run removes nothing; each change is in the audit trail; what Kafka would not
    take is refused by name."""
    acl = Acl("User:ann", "READ", "ALLOW", "PREFIXED", group)
    assert cluster.acls.add(acl)
    assert not cluster.acls.add(acl)
    assert cluster.acls.remove(AclFilter(principal="User:ann"), dry_run=True) == [acl]
    assert cluster.acls.find() == [acl]
    assert cluster.acls.remove(AclFilter(principal="User:ann")) == [acl]
    assert cluster.acls.remove(AclFilter(principal="User:ann")) == []
    trail = sa.text(
        "select act, before, after from sharequeue.audit_trail where act like '%acl' order by audit_id"
    )
    rows = [(row["act"], row["before"], row["after"]) for row in cluster.service.rows(trail)]
    told = {
        "principal": "User:ann",
        "operation": "READ",
        "permission": "ALLOW",
        "pattern_type": "PREFIXED",
        "resource_name": group,
        "resource_type": "GROUP",
    }
    assert rows == [("add_acl", None, told), ("remove_acl", told, None)]
    for principal, operation, pattern, name in (
        ("ann", "READ", "LITERAL", group),
        ("User:", "READ", "LITERAL", group),
        ("User:ann", "WRITE", "LITERAL", group),
        ("User:ann", "READ", "MATCH", group),
        ("User:ann", "READ", "LITERAL", ""),
    ):
        with pytest.raises(InvalidRequest):
            Acl(principal, operation, "ALLOW", pattern, name)
    for operation, kind in (("ALTER", "TOPIC"), ("READ", "CLUSTER")):
        with pytest.raises(InvalidRequest):
            Acl("User:ann", operation, "ALLOW", "LITERAL", group, kind)
        with (
            pytest.raises(InvalidRequest, match="the ACL is not valid"),
            cluster.service.transaction() as connection,
        ):
            connection.exec_driver_sql(
                "select sharequeue.add_acl('User:ann', %s, 'ALLOW', 'LITERAL', 'x', %s)", (operation, kind)
            )


def test_the_command_takes_kafkas_options(
    private_database: Database, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`acls add | list | remove`, as `kafka-acls.sh` is told; every combination of what is named."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    run = CliRunner()
    one = ["--group", group, "--resource-pattern-type", "prefixed"]
    two = ["--allow-principal", "User:ann", "--operation", "Read", "--operation", "describe"]
    assert run.invoke(command, ["acls", "add", *one, *two]).output.startswith("2 added, 0 existed before")
    again = json.loads(run.invoke(command, ["acls", "add", *one, *two, "-o", "json"]).output)
    assert {each["status"] for each in again} == {"existed before"}
    listed = json.loads(run.invoke(command, ["acls", "list", "--group", group, "-o", "json"]).output)
    assert [(each["operation"], each["permission"]) for each in listed] == [
        ("Describe", "ALLOW"),
        ("Read", "ALLOW"),
    ]
    # As with Kafka's tool, what is removed is literal unless said.
    assert run.invoke(command, ["acls", "remove", "--group", group]).output.startswith("would remove 0")
    dry = run.invoke(command, ["acls", "remove", *one])
    assert dry.output.startswith("would remove 2")
    assert run.invoke(command, ["acls", "remove", *one, "--execute", "--yes"]).output.startswith("removed 2")
    assert json.loads(run.invoke(command, ["acls", "list", "-o", "json"]).output) == []
    assert run.invoke(command, ["acls", "remove"]).exit_code == 2
    closed = run.invoke(command, ["acls", "authorizer", "--allow-everyone-if-no-acl-found", "false"])
    assert closed.output == "allow.everyone.if.no.acl.found=false (was true)\n"
