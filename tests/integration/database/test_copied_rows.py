"""A database that has another one's rows, but not the values of its sequences, as after logical replication."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.local import doctor, postgres
from sharequeue.local.doctor import FAILURE, WARNING, DoctorFinding
from sharequeue.local.home import Home
from sharequeue.state import State
from sharequeue.state.journal import Journal
from tests import single
from tests.waiting import pass_time, wait_until

SEQUENCES = ("audit_log_audit_id_seq", "leases_lease_id_seq", "share_partitions_share_partition_id_seq")


def _run(database: Database, statement: str) -> None:
    with database.transaction() as connection:
        connection.exec_driver_sql(statement)


@pytest.fixture
def copied(private_database: Database, at: SharePartition) -> Database:
    """Give the database of `at` after work, with all its sequences at their start."""
    state = State(private_database)
    single.acquire(state, at, "holder", None, 10)
    lease = single.acquire(state, at, "member", None, 10)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
    state.administration.raise_state_epochs()
    for sequence in SEQUENCES:
        _run(private_database, f"alter sequence sharequeue.{sequence} restart")
    return private_database


def test_sequences_that_are_behind_are_found_and_set(copied: Database, at: SharePartition) -> None:
    """verify names each, also for one group; raise_state_epochs sets them, and says so in the audit log."""
    state = State(copied)
    for group in (None, at.group_id):
        found = state.figures.verify(group)
        assert [each.split()[1] for each in sorted(found)] == list(SEQUENCES)
        assert all(each.startswith("sequence ") and "raise-epochs" in each for each in found)
    state.administration.raise_state_epochs()
    assert state.figures.verify() == []
    logged = copied.rows(
        sa.text("select after -> 'sequences' as set from sharequeue.audit_log order by audit_id desc limit 1")
    )
    assert sorted(logged[0]["set"]) == list(SEQUENCES)
    lease = single.acquire(state, at, "member", None, 10)
    assert lease is not None
    assert (
        copied.rows(sa.text("select count(*) as n from sharequeue.journal where lease_id > journal_id"))[0][
            "n"
        ]
        == 0
    )
    assert state.figures.verify() == []


@pytest.mark.deep
def test_a_subscriber_of_a_publication_takes_over(stack_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all rows, also those of the next days' partitions; after raise_state_epochs it goes on."""
    monkeypatch.setitem(postgres._OPTIONS, "wal_level", "logical")
    home = Home.at(stack_home)
    home.create()
    port = postgres.ensure(home, lambda _: None)
    at = SharePartition("g", "t", 0)
    with (
        Database(postgres.url(home, "sharequeue", port)) as source,
        Database(postgres.url(home, "dagster", port)) as copy,
    ):
        for database in (source, copy):
            migrate(database)
        _empty(copy)
        _run(source, "create publication everything for all tables with (publish_via_partition_root = true)")
        _run(source, "select pg_create_logical_replication_slot('copying', 'pgoutput')")
        url = source.engine.url
        route = f"host={url.host} port={url.port} user={url.username} password={url.password} dbname={url.database}"
        _run(
            copy,
            f"create subscription copying connection '{route}' publication everything"
            " with (create_slot = false, slot_name = 'copying')",
        )
        alter_group_configs(source, "g", {})
        state, copied = State(source), State(copy)
        state.initialize(at, "id", 0, 2)
        single.observe(state, at, "id", 0, 1000, 1000)

        def same() -> bool:
            counted = sa.text("select count(*), max(journal_id) from sharequeue.journal")
            return bool(source.rows(counted) == copy.rows(counted))

        copying = sa.text("select count(*) as n from pg_subscription_rel where srsubstate <> 'r'")
        wait_until(lambda: copy.rows(copying)[0]["n"] == 0)
        for days in (1, 5):  # the day has a partition; it has none yet
            pass_time(source, days * 86400)
            single.acquire(state, at, "m", None, 10)
            state.sweep()
            Journal(source).keep(retention=timedelta(days=7))
            single.acquire(state, at, "m", None, 10)
            wait_until(same)
        wait_until(lambda: _counts(source) == _counts(copy))
        _run(copy, "alter subscription copying disable")
        _run(copy, "alter subscription copying set (slot_name = none)")
        _run(copy, "drop subscription copying")
        assert len(copied.figures.verify()) >= 2
        copied.administration.raise_state_epochs()
        assert copied.figures.verify() == []
        assert single.acquire(copied, at, "m", None, 10) is not None


def _counts(database: Database) -> dict[str, int | None]:
    """Return the number of rows of each published table."""
    names = database.rows(
        sa.text(
            "select c.relname as name from pg_class c where c.relnamespace = to_regnamespace('sharequeue')"
            " and c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p' order by 1"
        )
    )
    with database.transaction() as connection:
        return {
            name: connection.scalar(
                sa.select(sa.func.count()).select_from(sa.table(name, schema="sharequeue"))
            )
            for name in [row["name"] for row in names]
        }


def _empty(database: Database) -> None:
    tables = database.rows(
        sa.text(
            "select string_agg(format('sharequeue.%I', tablename), ', ') as names from pg_tables"
            " where schemaname = 'sharequeue' and tablename <> 'audit_log'"
        )
    )[0]["names"]
    _run(database, f"truncate {tables} restart identity cascade")


@pytest.mark.parametrize(
    ("sequence", "used"),
    [
        ("leases_lease_id_seq", "update sharequeue.leases set lease_id = 1000000"),
        ("leases_lease_id_seq", "update sharequeue.journal set journal_id = 1000000"),
        ("leases_lease_id_seq", "update sharequeue.journal_snapshots set journal_id = 1000000"),
        (
            "share_partitions_share_partition_id_seq",
            "update sharequeue.journal_snapshots set share_partition_id = 1000000",
        ),
    ],
)
def test_the_highest_id_may_be_in_any_table(
    private_database: Database, at: SharePartition, sequence: str, used: str
) -> None:
    """Ids of leases and of the journal are of one sequence, and ids outlive the rows that had them first."""
    state = State(private_database)
    single.acquire(state, at, "holder", None, 10)
    assert state.figures.sequences_behind() == []
    _run(private_database, used)
    assert state.figures.sequences_behind() == [sequence]


def test_doctor_finds_what_replication_does_not_copy(copied: Database) -> None:
    """Sequences are a failure; a publication of the journal's single partitions is a warning."""

    def found() -> dict[str, DoctorFinding]:
        return {each.subject: each for each in doctor._copied(copied)}

    assert found()["sequences"].level == FAILURE
    assert all(name in found()["sequences"].seen for name in SEQUENCES)
    State(copied).administration.raise_state_epochs()
    assert found() == {}
    _run(copied, "create publication by_partition for all tables")
    assert found()["publication"].level == WARNING
    assert "by_partition" in found()["publication"].seen
    _run(copied, "alter publication by_partition set (publish_via_partition_root = true)")
    assert found() == {}
