"""Who may touch what: owner, service, worker and reader, each logged in as a role of its own."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sqlalchemy.exc import ProgrammingError

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.database.migrations import SchemaForbidden, migrate
from sharequeue.domain.settings import RoleNames, Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.topics import Topics
from sharequeue.service.admission import ANONYMOUS
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.operations import configs, groups, offsets
from sharequeue.service.principal import Principal
from sharequeue.state import State
from tests import single
from tests.fixtures.stack import REPOSITORY
from tests.operation_calls import call_every_operation, start
from tests.operations import may_call
from tests.waiting import one_round

PROGRAMS = ("sharequeue", "pipelines", "orchestration")
PURPOSES = ("owner", "service", "worker", "reader")


@dataclass(frozen=True)
class Logins:
    """One database, seen by the superuser and by one login of each role."""

    superuser: Database
    owner: Database
    service: Database
    worker: Database
    reader: Database
    names: RoleNames


@pytest.fixture
def logins(private_database: Database) -> Iterator[Logins]:
    """Give a login of each role, under role names that are this test's alone."""
    suffix = uuid.uuid4().hex[:8]
    names = RoleNames(*(f"our {purpose} {suffix}" for purpose in PURPOSES))
    migrate(private_database, roles=names)
    opened: dict[str, Database] = {}
    for purpose, name in names._asdict().items():
        login = f"{purpose}_{suffix}"
        with private_database.transaction() as connection:
            connection.exec_driver_sql(f"create role {login} login password 'secret' in role \"{name}\"")
        url = private_database.engine.url.set(username=login, password="secret")
        opened[purpose] = Database(url.render_as_string(hide_password=False))
    try:
        yield Logins(private_database, names=names, **opened)
    finally:
        for each in opened.values():
            each.close()


def _refused(database: Database, *statements: str) -> None:
    # One connection for all: there are hundreds.
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            with pytest.raises(ProgrammingError, match="permission denied"):
                connection.execute(sa.text(statement))


def _names(logins: Logins, query: str, **parameters: str) -> list[str]:
    return [row["name"] for row in logins.superuser.rows(sa.text(query), **parameters)]


def _tables(logins: Logins) -> list[str]:
    return _names(
        logins,
        "select relname as name from pg_class where relnamespace = to_regnamespace('sharequeue')"
        " and relkind in ('r', 'p')",
    )


def _start(logins: Logins, group: str, topic: str) -> SharePartition:
    return start(logins.service, logins.worker, group, topic)


@pytest.mark.parametrize("role", ["service", "worker", "reader"])
def test_a_role_can_call_its_operations_and_no_other(logins: Logins, role: str) -> None:
    """Every function that a role is to call works for it, and no other is granted to it."""
    granted = _names(
        logins,
        "select distinct proname as name from pg_proc where pronamespace = to_regnamespace('sharequeue')"
        " and has_function_privilege(:role, oid, 'EXECUTE')",
        role=getattr(logins.names, role),
    )
    assert set(granted) == may_call(role)
    call_every_operation(getattr(logins, role), logins.superuser, role)


def test_a_worker_touches_no_table_no_helper_and_no_clock(logins: Logins, group: str, topic: str) -> None:
    """Every table is closed to a worker and to a reader for every verb, every inner function to both, and only the
    owner moves the clock."""
    _start(logins, group, topic)
    for database in (logins.worker, logins.reader):
        for verb in ("select from", "delete from"):
            _refused(database, *(f"{verb} sharequeue.{table}" for table in _tables(logins)))
    open_to_some = _names(
        logins,
        "select relname as name from pg_class, (values ('select'), ('insert'), ('update'), ('delete'), ('truncate'),"
        " ('references'), ('trigger')) v (verb), (values (:worker), (:reader)) r (role)"
        " where relnamespace = to_regnamespace('sharequeue') and case relkind"
        " when 'S' then has_sequence_privilege(role, oid, 'usage, select, update')"
        " when 'v' then verb <> 'select' and has_table_privilege(role, oid, verb)"
        " else relkind in ('r', 'p') and has_table_privilege(role, oid, verb) end",
        worker=logins.names.worker,
        reader=logins.names.reader,
    )
    assert open_to_some == []
    for database in (logins.worker, logins.service, logins.reader):
        _refused(database, "select sharequeue.set_clock_offset(interval '1 hour')")
        _refused(database, "select sharequeue.apply_permissions()")
        _refused(database, "select sharequeue_internal.end_unacknowledged(1, 1)")
        _refused(database, "select sharequeue_internal.audit('x', 'g', null, null)")
        _refused(database, "create table sharequeue.mine (a integer)")
    uses = _names(
        logins,
        "select rolname as name from pg_roles where has_schema_privilege(oid, 'sharequeue_internal', 'usage')"
        " and rolname !~ '^pg_' and not rolsuper and not pg_has_role(oid, cast(:owner as name), 'member')",
        owner=logins.names.owner,
    )
    assert uses == []
    _refused(logins.worker, "select sharequeue.raise_state_epochs()")
    _refused(logins.worker, "select sharequeue.extend_locks(interval '1 hour')")
    logins.owner.rows(sa.text("select sharequeue.set_clock_offset(interval '1 hour')"))
    [row] = logins.worker.rows(sa.text("select sharequeue.clock() - clock_timestamp() as ahead"))
    assert timedelta(minutes=59) < row["ahead"] <= timedelta(hours=1)


def test_a_reader_can_look_at_everything_with_the_command(
    logins: Logins, group: str, topic: str, tmp_path: Path
) -> None:
    """The commands that the page on roles names for a reader need no other role."""
    at = _start(logins, group, topic)
    assert single.acquire(State(logins.worker), at, "member", None, 10) is not None
    url = logins.reader.engine.url.render_as_string(hide_password=False)
    named = ("--group", group)
    for words in (
        ("groups", "list"),
        ("groups", "describe", *named),
        ("state", "show", *named),
        ("audit", *named),
        ("verify", *named),
    ):
        result = CliRunner().invoke(command, [*words, "--database-url", url, "--home", str(tmp_path)])
        assert result.exit_code == 0, (words, result.output, result.exception)
        assert group in result.stdout or words[0] in ("verify", "audit")


def test_the_service_traces_a_record_also_without_a_broker(
    logins: Logins, group: str, topic: str, tmp_path: Path
) -> None:
    """Its role is enough for the life of a record; without Kafka it is that which the state knows."""
    at = _start(logins, group, topic)
    assert single.acquire(State(logins.worker), at, "member", None, 10) is not None
    url = logins.service.engine.url.render_as_string(hide_password=False)
    words = ("trace", at.topic, str(at.partition), "0", "--group", group, "-o", "json")
    result = CliRunner().invoke(command, [*words, "--database-url", url, "--home", str(tmp_path)])
    assert result.exit_code == 0, (result.output, result.exception)
    rows = json.loads(result.stdout)
    assert [row["event"] for row in rows] == ["note", "leased", "acquired"]
    assert rows[0]["detail"].startswith("Kafka cannot be asked: ")


def test_the_service_does_admin_operations_as_nobody_known(
    logins: Logins, settings: Settings, group: str
) -> None:
    """The role of the service is enough for each of them, and speaks as User:ANONYMOUS."""
    with Topics(settings) as topics:
        nobody = Principal(logins.service, topics)
        changes: dict[str, str | int | bool | None] = {"share.delivery.count.limit": "7"}
        configs.alter_configs(nobody, configs.AlterConfigsBody(group_id=group, configs=changes))
        asked = configs.DescribeConfigsBody(group_ids=[group])
        (of_group,) = configs.describe_configs(nobody, asked)["groups"]
        changed = {"name": "share.delivery.count.limit", "value": "7", "is_default": False}
        assert changed in of_group["configs"]
        body = groups.DescribeBody(group_ids=[group], include_authorized_operations=True)
        (found,) = groups.describe_groups(nobody, body)["groups"]
        assert (found["error_code"], found["group_state"]) == (0, "Empty")
        of_all = offsets.DescribeOffsetsBody(groups=[offsets.GroupTopics(group_id=group)])
        assert offsets.describe_offsets(nobody, of_all)["groups"][0]["topics"] == []
        nothing = offsets.AlterOffsetsBody(group_id=group, topics=[])
        assert offsets.alter_offsets(nobody, nothing)["error_code"] == 0
        topic = offsets.TopicName(topic_name="nothing-of-that-name")
        named = offsets.DeleteOffsetsBody(group_id=group, topics=[topic])
        assert offsets.delete_offsets(nobody, named)["responses"][0]["error_code"] == 3
        (gone,) = groups.delete_groups(nobody, groups.DeleteGroupsBody(groups_names=[group]))["results"]
        assert gone["error_code"] == 0
    principals = logins.reader.rows(
        sa.text("select distinct principal from sharequeue.audit_trail where group_id = :g"), g=group
    )
    assert [row["principal"] for row in principals] == [ANONYMOUS]


def test_a_reader_sees_the_views_and_nothing_else(logins: Logins, group: str, topic: str) -> None:
    """A reader may read each view; every function that changes something is closed to it."""
    at = _start(logins, group, topic)
    assert single.acquire(State(logins.worker), at, "member", None, 10) is not None
    views = _names(
        logins,
        "select relname as name from pg_class where relnamespace = to_regnamespace('sharequeue') and relkind = 'v'",
    )
    assert {"share_partition_status", "held_leases", "audit_trail", "acl_list", "token_list"} <= set(views)
    for view in views:
        logins.reader.rows(sa.text(f"select * from sharequeue.{view}"))  # noqa: S608 - a name from the catalog
    state = State(logins.reader)
    assert [each.acquired for each in state.figures.describe(group)] == [10]
    assert state.figures.verify() == []
    assert [each.records for each in state.figures.leases(group)] == [10]
    assert state.outputs.counted(group, "files") == []
    assert state.dead_letters.written(group) == []
    assert state.figures.delivery_counts(group) == []
    changing = _names(
        logins,
        "select proname as name from pg_proc where pronamespace = to_regnamespace('sharequeue') and provolatile = 'v'"
        " and proname <> 'clock' and has_function_privilege(:role, oid, 'EXECUTE')",
        role=logins.names.reader,
    )
    assert changing == []


def test_the_service_keeps_groups_and_not_state(
    logins: Logins, settings: Settings, group: str, topic: str
) -> None:
    """The coordinator runs as the service's role, which writes groups and members, whose triggers go on working, and
    no other table."""
    _start(logins, group, topic)
    one_round(Coordinator(logins.service, Topics(settings)))
    joined = heartbeat(logins.service, HeartbeatRequest(group, "member", 0, subscribed_topic_names=(topic,)))
    assert joined.member_epoch == 2
    left = heartbeat(logins.service, HeartbeatRequest(group, "member", -1))
    assert left.error_code == 0
    for other in (logins.worker, logins.reader):  # as docs/reference/configs.md says
        with pytest.raises(ProgrammingError, match="permission denied"):
            alter_group_configs(other, group, {"share.delivery.count.limit": 4})
    alter_group_configs(logins.owner, group, {"share.delivery.count.limit": 4})
    alter_group_configs(logins.service, group, {"share.delivery.count.limit": 3})
    limit = sa.text("select delivery_count_limit from sharequeue.group_settings where group_id = :group")
    assert logins.service.rows(limit, group=group)[0]["delivery_count_limit"] == 3
    kept = {"assignments", "group_configs", "grown_topics", "members"}
    kept |= {"share_groups", "topics"}
    for table in set(_tables(logins)) - kept:
        logins.service.rows(sa.text(f"select count(*) from sharequeue.{table}"))  # noqa: S608 - from the catalog
        _refused(logins.service, f"delete from sharequeue.{table}")  # noqa: S608 - from the catalog
    _refused(logins.service, "delete from sharequeue.share_groups")


HOSTILE = """
create schema evil;
create function evil.earlier(timestamptz, interval) returns timestamptz language sql as
    $$ select timestamptz '1970-01-01 00:00:00+00' $$;
create operator evil.+ (leftarg = timestamptz, rightarg = interval, function = evil.earlier);
create function evil.never(bigint, bigint) returns boolean language sql as $$ select false $$;
create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.never);
create function evil.lower(int8multirange) returns bigint language sql as $$ select 999::bigint $$;
create function evil.clock_timestamp() returns timestamptz language sql as
    $$ select timestamptz '1970-01-01 00:00:00+00' $$;
create table evil.share_partitions (like sharequeue.share_partitions);
grant usage on schema evil to public;
grant all on all tables in schema evil to public;
"""


def test_a_hostile_session_changes_nothing(logins: Logins, group: str, topic: str) -> None:
    """A search path full of traps, temporary tables and types of our names, and quotes in every text: a worker gets
    what every other gets."""
    _start(logins, group, topic)
    with logins.superuser.transaction() as connection:
        connection.exec_driver_sql(HOSTILE)
    member = "'; drop table x; --\" \\ $$"
    with logins.worker.transaction() as connection:
        connection.exec_driver_sql(
            "create temporary table share_partitions (a integer); create temporary table leases (a integer);"
            " create temporary table clock_offset (amount interval);"
            " create domain pg_temp.int8range as text; create domain pg_temp.smallint as text;"
            " set search_path = evil, pg_temp, pg_catalog, sharequeue"
        )
        call = sa.text(
            "select * from sharequeue.acquire(:group, :topic, 0, 1, :member, null, 5), sharequeue.clock() as at"
        )
        row = connection.execute(call, {"group": group, "topic": topic, "member": member}).mappings().one()
        assert (row["error_code"], str(row["offsets"])) == (0, "{[0,5)}")
        assert min(row["expires_at"], row["at"]).year > 2000
    [held] = State(logins.reader).figures.leases(group)
    assert (held.member_id, held.records) == (member, 5)
    assert State(logins.worker).release_member(group, member) == 5
    assert State(logins.reader).figures.verify() == []


def test_the_owner_migrates_and_nobody_else(logins: Logins) -> None:
    """A member of the owner's role migrates as that role: what it makes belongs to the role, not to the login."""
    assert migrate(logins.owner) == []
    with logins.superuser.transaction() as connection:
        connection.exec_driver_sql(
            "update sharequeue.schema_migrations set checksum = '' where name = 'functions/60_operator/audit.sql'"
        )
    assert "functions/99_permissions.sql" in migrate(logins.owner)
    owners = _names(
        logins,
        "select distinct pg_get_userbyid(relowner) as name from pg_class"
        " where relnamespace = to_regnamespace('sharequeue') union select pg_get_userbyid(proowner) from pg_proc"
        " where pronamespace in (to_regnamespace('sharequeue'), to_regnamespace('sharequeue_internal'))"
        " union select pg_get_userbyid(nspowner) from pg_namespace where nspname like 'sharequeue%'",
    )
    assert owners == [logins.names.owner]
    with pytest.raises(SchemaForbidden, match=f'permission denied.*grant "{logins.names.owner}" to worker_'):
        migrate(logins.worker)
    State(logins.worker).now()


def test_the_audit_trail_cannot_be_rewritten(logins: Logins, group: str, topic: str) -> None:
    """Each administrative act says who, what, before and after; not even the owner changes a line of it."""
    at = _start(logins, group, topic)
    single.alter_offsets(State(logins.worker), at, "id", 7)
    alter_group_configs(logins.service, group, {"share.delivery.count.limit": 3})
    alter_group_configs(logins.service, group, {"share.delivery.count.limit": 4})
    trail = logins.reader.rows(
        sa.text("select * from sharequeue.audit_trail where group_id = :group order by audit_id"), group=group
    )
    acts = [(row["act"], row["before"], row["after"]) for row in trail]
    assert acts[0][0] == "alter_offsets"
    assert (acts[0][1]["start_offset"], acts[0][2]["start_offset"]) == (0, 7)
    limit = "share.delivery.count.limit"
    assert acts[1:] == [
        ("alter_group_config", None, {limit: "3"}),
        ("alter_group_config", {limit: "3"}, {limit: "4"}),
    ]
    assert trail[0]["principal"] == f"User:{logins.worker.engine.url.username}"
    assert trail[1]["role_name"] == logins.service.engine.url.username
    for statement in (
        "update sharequeue.audit_log set act = ''",
        "delete from sharequeue.audit_log",
        "truncate sharequeue.audit_log",
    ):
        with pytest.raises(ProgrammingError, match="append-only"):
            logins.owner.rows(sa.text(statement))


def test_every_function_that_the_code_calls_is_granted_to_a_role(logins: Logins) -> None:
    """Each SQL function that the Python code calls is granted to a role: a new function that is missing in
    99_permissions.sql is found here, not by a user."""
    sources = [path.read_text() for room in PROGRAMS for path in (REPOSITORY / room).rglob("*.py")]
    called = {name for source in sources for name in re.findall(r"sharequeue\.(\w+)\(", source)}
    closed = _names(
        logins,
        "select distinct proname as name from pg_proc where pronamespace = to_regnamespace('sharequeue')"
        " and not has_function_privilege(:service, oid, 'EXECUTE')",
        service=logins.names.service,
    )
    # The owner's: he applies the schema, and `sharequeue.testing` moves the clock of a database of its own.
    assert called & set(closed) == {"apply_permissions", "set_clock_offset"}


def test_privileges_that_public_was_given_are_taken_back(logins: Logins) -> None:
    """A default privilege of the owner would open tables, views and the schema to every login of the server."""
    with logins.superuser.transaction() as connection:
        connection.exec_driver_sql("grant usage on schema sharequeue, sharequeue_internal to public")
        connection.exec_driver_sql("grant all on all tables in schema sharequeue to public")
        connection.exec_driver_sql("select sharequeue.apply_permissions()")
    _refused(logins.worker, "select count(*) from sharequeue.leases")
    open_to_all = sa.text(
        "select count(*) as n from pg_class c, aclexplode(c.relacl) a"
        " where c.relnamespace = to_regnamespace('sharequeue') and a.grantee = 0"
    )
    assert logins.superuser.rows(open_to_all)[0]["n"] == 0
    schemas = sa.text(
        "select count(*) as n from pg_namespace n, aclexplode(n.nspacl) a"
        " where n.nspname like 'sharequeue%' and a.grantee = 0"
    )
    assert logins.superuser.rows(schemas)[0]["n"] == 0
