"""A table of Postgres that is altered or dropped during a run ends the run; no record is at fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.postgres.alterations import altered
from sharequeue.spark.sinks.postgres.definition import are_the_cause
from sharequeue.spark.sinks.postgres.sink import PostgresTable, Step
from sharequeue.spark.sinks.postgres.tables import cursor_of, find
from sharequeue.state import State
from tests import single
from tests.fixtures.pipelines import Assigned, MakeTable, Produce, RunJob, job_of
from tests.fixtures.stack import MakeTopic
from tests.integration.spark.test_postgres_sink import simple

SCHEMA = "altered_tables"
GIVEN = """
    create schema altered_tables;
    set local search_path to altered_tables;
    create table other (id integer primary key);
    create domain code as text check (length(value) < 9);
    create type mood as enum ('good', 'bad');
    create function pass() returns trigger language plpgsql as $$ begin return new; end $$;
    create sequence numbers;
    create table t ("offset" bigint, text text not null, code code, amount numeric(9, 4), mood mood, parent integer,
        n integer default nextval('numbers'), size integer, constraint small check (size < 100));
    create trigger pass before insert on t for each row execute function pass();
    create unique index once on t (parent);
    create table parts (n integer not null, text text) partition by range (n);
    create table low partition of parts for values from (0) to (10);
    create role altered_tables_writer;
    grant usage, create on schema altered_tables to altered_tables_writer;
    grant usage on sequence numbers to altered_tables_writer;
    grant insert, select on t to altered_tables_writer;
"""


@pytest.fixture
def cursor(database: Database) -> Iterator[Any]:
    """Give a cursor of a transaction that has the tables, and is rolled back."""
    with database.engine.connect() as connection:
        found = cursor_of(connection)
        found.execute(GIVEN)
        yield found
        connection.rollback()


ALTERED = {
    "alter table t add extra text not null": "NOT NULL of extra is new",
    "alter table t alter mood set not null": "NOT NULL of mood is new",
    "alter table t alter n drop default": "default of n is gone",
    "alter table t alter amount type numeric(9, 2)": r"column amount was numeric\(9,4\), and is numeric\(9,2\)",
    "alter table t alter size type smallint": "column size was integer, and is smallint",
    "alter table t rename text to words": "NOT NULL of words is new, column text is gone",
    "alter table t drop amount": "column amount is gone",
    "alter table t drop size, add size integer generated always as (1) stored": "generated value of size is new",
    "alter table t add constraint even check (size % 2 = 0) not valid": r"constraint even is new \(CHECK .*%",
    "alter table t drop constraint small, add constraint small check (size < 9)": r"small was .*100.*, and is .*9",
    "alter table t add foreign key (parent) references other": r"_fkey is new \(FOREIGN KEY",
    "alter table t add unique (size)": r"constraint t_size_key is new \(UNIQUE",
    "create unique index on t (lower(text))": "index t_lower_idx is new",
    "alter domain code add check (value <> '')": r"constraint code_check1 is new \(CHECK",
    "alter domain code set not null": "type code was text, and is text NOT NULL",
    "alter type mood rename value 'bad' to 'sad'": "type mood was good, bad, and is good, sad",
    "create trigger more after insert on t for each row execute function pass()": "trigger more is new",
    "alter table t disable trigger pass": "trigger pass was .* O, and is .* D",
    "create or replace function pass() returns trigger language plpgsql as $$ begin return null; end $$": (
        r"function pass\(\) was replaced"
    ),
    "create rule skip as on insert to t do instead nothing": "rule skip is new",
    "create policy mine on t with check (size > 1)": "policy mine is new",
    "drop table t": "there is no table .*create it there",
    "alter table t rename to t2; create view t as select * from t2": "is a view",
    "drop schema altered_tables cascade": "there is no table",
    "alter schema altered_tables rename to renamed": "there is no table",
}


@pytest.mark.parametrize("statement", ALTERED)
def test_an_alteration_that_may_refuse_rows_is_named(cursor: Any, statement: str) -> None:
    """Whatever of the table, its types or its triggers was altered, the words say what it was and is."""
    target = find(cursor, f"{SCHEMA}.t")
    assert altered(cursor, target) == []
    cursor.execute(statement)
    assert re.search(ALTERED[statement], ", ".join(altered(cursor, target)))


@pytest.mark.parametrize(
    "statement",
    [
        "alter table t add note text, add seen timestamptz not null default now()",
        "alter table t drop constraint small; drop index once; alter table t alter text drop not null",
        "alter table t add constraint more check (true) not valid; alter table t drop constraint more",
        "alter table other add unique (id); create table third (t integer references other)",
    ],
)
def test_an_alteration_that_refuses_no_row_does_not_count(cursor: Any, statement: str) -> None:
    """New columns that may be null or have a default, constraints that are gone: a refused row is its record's own
    outcome."""
    target = find(cursor, f"{SCHEMA}.t")
    cursor.execute(statement)
    assert altered(cursor, target) == []


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("create table high partition of parts for values from (10) to (20)", []),
        ("alter table parts detach partition low", ["partition low is gone"]),
        ("alter table low add constraint odd check (n <> 2)", ["constraint odd of partition low is new"]),
        ("alter table low alter text set not null", ["NOT NULL of text of partition low is new"]),
    ],
)
def test_a_removed_or_restricted_partition_is_an_alteration(
    cursor: Any, statement: str, words: list[str]
) -> None:
    """A new one refuses nothing; one that is gone, or that refuses more, does."""
    target = find(cursor, f"{SCHEMA}.parts")
    cursor.execute(statement)
    assert [each.partition(" (")[0] for each in altered(cursor, target)] == words


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "revoke insert on t from altered_tables_writer",
            "may not insert into and select from altered_tables.t",
        ),
        (
            "revoke create on schema altered_tables from altered_tables_writer",
            "may not create staging tables",
        ),
        (
            "revoke usage on schema altered_tables from altered_tables_writer",
            "may not use the schema of .*grant it",
        ),
        (
            "revoke usage on sequence numbers from altered_tables_writer",
            "right to use sequence .*numbers is gone",
        ),
        ("alter table t enable row level security", "row security is new"),
    ],
)
def test_a_revoked_privilege_is_named(cursor: Any, statement: str, words: str) -> None:
    """Also by a role that may no more than the sink needs."""
    cursor.execute("set local role altered_tables_writer")
    target = find(cursor, f"{SCHEMA}.t")
    assert altered(cursor, target) == []
    cursor.execute(f"reset role; {statement}; set local role altered_tables_writer")
    (found,) = altered(cursor, target)
    assert re.search(words, found)


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        ([], False),
        (["index slow is new (CREATE INDEX …)", "constraint other is new (CHECK …)"], False),
        (["constraint old was CHECK (n > 1), and is CHECK (n > 2)"], True),
        (["index old is new (CREATE UNIQUE INDEX …)"], True),
        (["constraint other is new (CHECK …)", "trigger any is new (CREATE TRIGGER …)"], True),
    ],
)
def test_a_refusal_by_an_unchanged_constraint_is_the_fault_of_the_row(found: list[str], cause: bool) -> None:
    """If the table was only restricted further: a trigger could have changed the row. Other refusals may be of it."""
    words = 'CheckViolation: new row for relation "t" violates check constraint "old"'
    assert are_the_cause(found, [words]) is cause
    assert are_the_cause(found, [words, "NotNullViolation: null value in column"]) is bool(found)


@pytest.mark.parametrize(
    ("step", "statement", "words"),
    [
        (
            "copied",
            "alter table {} add extra text not null",
            r"extra is new\), and refuses rows .*NotNull",
        ),
        (
            "copied",
            "alter table {} alter text type varchar(3)",
            r"text was text, and is character varying\(3\)",
        ),
        ("staged", "drop schema {schema} cascade", "there is no table"),
    ],
)
def test_a_table_that_is_altered_during_a_run_ends_it(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    database: Database,
    make_table: MakeTable,
    step: Step,
    statement: str,
    words: str,
) -> None:
    """No record is rejected, and none loses a delivery."""
    topic, table = make_topic(1), make_table('"offset" bigint, text text')
    produce(topic, 0, ["sound"] * 3)
    holder = assigned(topic)

    def alter(reached: Step) -> None:
        if reached == step:
            with database.transaction() as connection:
                connection.execute(sa.text(statement.format(table, schema=table.partition(".")[0])))

    with pytest.raises(SinkRefused, match=f"was altered during the run .*{words}"):
        run_job(job_of(group, topic, simple, destination=PostgresTable(table, on_step=alter)), holder)
    (lease,) = [single.acquire(state, at, "after", None, 10) for at in holder.assignment]
    assert lease is not None
    assert [(each.offsets.count, each.delivery_count) for each in lease.deliveries] == [(3, 1)]
