"""Share-partition state changes at READ COMMITTED only: any other level is refused by name, and nothing changes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg2
import pytest
import sqlalchemy as sa
from psycopg2 import extensions

from sharequeue.database import Database
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from tests import single

AT = SharePartition("g", "t", 0)
REFUSED = r"transaction is {level}.*at READ COMMITTED: begin the transaction with"


@pytest.fixture(params=["REPEATABLE READ", "SERIALIZABLE"])
def level(request: pytest.FixtureRequest) -> str:
    """Give a level that is refused."""
    return str(request.param)


@pytest.fixture
def state(private_database: Database) -> State:
    """Give a state with a thousand records for group `g`."""
    ensure_group(private_database, "g")
    state = State(private_database)
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 1000, 1000)
    return state


@pytest.fixture
def other(private_database: Database, level: str) -> Iterator[extensions.connection]:
    """Give a connection of a client of its own, whose transactions are at that level."""
    url = private_database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    opened = psycopg2.connect(url)
    opened.set_session(isolation_level=level)
    yield opened
    opened.close()


def everything(database: Database) -> dict[str, str]:
    """A fingerprint of each table."""
    tables = database.rows(
        sa.text(
            "select relname as name from pg_class where relnamespace = to_regnamespace('sharequeue')"
            " and relkind in ('r', 'p') and not relispartition order by 1"
        )
    )
    query = (
        "select coalesce(md5(string_agg(t::text, ',' order by t::text)), '') as print from sharequeue.{} t"
    )
    return {
        row["name"]: str(database.rows(sa.text(query.format(row["name"]).replace("::", r"\:\:")))[0]["print"])
        for row in tables
    }


def calls(database: Database) -> list[str]:
    """A call of every function that changes state and that somebody else than the schema's owner may make, and of the
    two that run inside others' transactions, every argument null."""
    rows = database.rows(
        sa.text(
            "select format('select sharequeue.%I(%s)', proname, ("
            "   select string_agg(format('null::%s', format_type(t, null)), ', ' order by n)"
            "   from unnest(proargtypes) with ordinality as a (t, n))) as call"
            " from pg_proc where pronamespace = to_regnamespace('sharequeue') and provolatile = 'v'"
            " and prorettype <> cast('trigger' as regtype) and proname not in ('clock', 'apply_permissions')"
            " and (prosecdef or proname in ('set_clock_offset', 'raise_group_epoch')) order by 1".replace(
                "::", r"\:\:"
            )
        )
    )
    return [str(row["call"]) for row in rows]


def test_every_function_that_changes_state_refuses_it(
    state: State, private_database: Database, other: extensions.connection, level: str
) -> None:
    """Out of the catalogue: whatever the arguments are, the level is said first, as Kafka's INVALID_REQUEST."""
    before, made = everything(private_database), calls(private_database)
    assert len(made) > 40
    for call in made:
        with other.cursor() as cursor:
            with pytest.raises(psycopg2.Error, match=REFUSED.format(level=level)) as refused:
                cursor.execute(call)
            assert refused.value.pgcode == "SQ042", call
        other.rollback()
    assert everything(private_database) == before


ROWS = (
    "insert into sharequeue.share_groups (group_id) values ('h')",
    "insert into sharequeue.group_configs values ('g', 'share.isolation.level', 'read_committed')",
    "update sharequeue.group_configs set value = '4'",
    "delete from sharequeue.group_configs",
    "insert into sharequeue.acls (principal, operation, permission, pattern_type, resource_name)"
    " values ('User:a', 'READ', 'ALLOW', 'LITERAL', 'g')",
)


def test_so_do_groups_configs_and_acls_as_rows(
    state: State, private_database: Database, other: extensions.connection, level: str
) -> None:
    """Whoever writes them with SQL of his own."""
    alter_group_configs(private_database, "g", {"share.delivery.count.limit": "5"})
    before = everything(private_database)
    for statement in ROWS:
        with other.cursor() as cursor, pytest.raises(psycopg2.Error, match=REFUSED.format(level=level)):
            cursor.execute(statement)
        other.rollback()
    assert everything(private_database) == before


def test_a_release_that_an_acquire_cannot_see_strands_nothing(
    state: State, private_database: Database, other: extensions.connection, level: str
) -> None:
    """Records are released while others are redeliverable already, which leaves the share-partition's row as it is.
    An acquire with a snapshot from before it would take the others, find nothing more, and write that down: the
    released ones would be available for ever with nobody who looks."""
    lease = single.acquire(state, AT, "m1", None, 10)
    assert lease is not None
    assert single.acquire(state, AT, "m2", None, 10) is not None
    single.observe(state, AT, "id", 0, 20, 20)
    state.release_member("g", "m2")
    with other.cursor() as cursor:
        cursor.execute("select count(*) from sharequeue.share_partitions")
        state.release_member("g", "m1")
        try:
            for _ in range(4):
                cursor.execute(
                    "select sharequeue.acquire('g', 't', 0, null, 'm3', null, 1000, null, null, 'fan_out')"
                )
            other.commit()
        except psycopg2.Error as error:
            assert (error.pgcode, level in str(error)) == ("SQ042", True)  # noqa: PT017 - without it, see what follows
            other.rollback()
    found = single.acquire(state, AT, "m3", None, 1000)
    assert found is not None
    assert found.offsets.first == 0
    assert state.figures.verify("g") == []


def test_a_database_is_at_read_committed_whatever_the_default_is(
    state: State, private_database: Database, level: str
) -> None:
    """Calls, transactions, and statements through the driver's own cursor, where the default is another."""
    name = private_database.engine.url.database
    with private_database.transaction() as connection:
        connection.exec_driver_sql(
            f"alter database {name} set default_transaction_isolation = '{level.lower()}'"
        )
    with Database(private_database.engine.url.render_as_string(hide_password=False)) as database:
        asked = sa.text("select current_setting('transaction_isolation') as level")
        for _ in range(2):
            assert database.rows(asked)[0]["level"] == "read committed"
            with database.transaction() as connection:
                assert connection.scalar(asked) == "read committed"
            with database.transaction() as connection:
                driver = connection.connection.cursor()
                driver.execute("select current_setting('transaction_isolation')")
                assert driver.fetchone() == ("read committed",)
                assert connection.scalar(asked) == "read committed"
            with database.transaction() as connection:
                # Its first statement is one of many.
                insert = sa.text(
                    "insert into sharequeue.share_groups (group_id) values (:name) on conflict do nothing"
                )
                connection.execute(insert, [{"name": "a"}, {"name": "b"}])
                assert connection.scalar(asked) == "read committed"
        # Nothing of it stays with the session: a pooler may give it to somebody else.
        with database.engine.connect() as connection:
            driver = connection.connection.cursor()
            driver.execute("show default_transaction_isolation")
            assert driver.fetchone() == (level.lower(),)
        lease = single.acquire(State(database), AT, "m", None, 10)
        assert lease is not None
        single.release(State(database), lease)
