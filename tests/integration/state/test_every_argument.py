"""Every function that anybody but the owner may call, with every hostile value for every argument, each alone.

Asked of the catalogue, so that a new function is asked too: `tests/operations.py` describes it, with what it takes on
purpose.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.domain.errors import first_line
from sharequeue.domain.offsets import MAX_OFFSET, OffsetSet
from sharequeue.domain.settings import RoleNames
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.state import State
from tests import single
from tests.hostile import Function, granted_functions, hostile_values
from tests.operation_calls import prepare, sane
from tests.operations import OPERATIONS, is_meant


class Attempts:
    """Calls in transactions that are taken back, and whether they would have changed a table."""

    def __init__(self, database: Database) -> None:
        self._database = database
        tables = database.rows(
            sa.text(
                "select quote_ident(relname) as name from pg_class where relnamespace = to_regnamespace('sharequeue')"
                " and relkind in ('r', 'p') and not relispartition"
                # A refusal may be kept, for its request to be repeated.
                " and relname <> 'requests' order by 1"
            )
        )
        row = "(select coalesce(string_agg(cast(t as text), ' ' order by cast(t as text)), '') from sharequeue.{} t)"
        rows = [row.format(table["name"]) for table in tables]
        self._dump = sa.text(f"select md5(concat_ws('|', {', '.join(rows)}))")
        with database.transaction() as connection:
            self._before = connection.scalar(self._dump)

    def outcome(self, function: Function, given: Mapping[str, Any]) -> tuple[str, str]:
        """`success`, `refused` by Kafka's name, or what no caller should meet, with what was said."""
        with self._database.engine.connect() as connection:
            transaction = connection.begin()
            try:
                connection.exec_driver_sql("set local statement_timeout = '120s'")
                rows = connection.execute(function.call(given), dict(given)).mappings().all()
                codes = [
                    {row[name] for row in rows} for name in (rows[0] if rows else ()) if "error_code" in name
                ]
                refused = [column - {None, 0} for column in codes if column - {None, 0}]
                if not refused:
                    return "success", ""
                if connection.scalar(self._dump) == self._before:
                    return "refused", str(refused)
                return "refused, but something has changed", str(refused)
            except DBAPIError as error:
                state = getattr(error.orig, "pgcode", None) or "none"
                named = state.startswith("SQ") or (not function.volatile and function.immutable)
                return "refused" if named else "not named", f"{state} {first_line(error.orig or error)[:120]}"
            finally:
                transaction.rollback()


@pytest.fixture
def known(private_database: Database) -> Mapping[str, Any]:
    """Give the prepared state, in a database whose functions are granted to roles."""
    suffix = uuid.uuid4().hex[:8]
    migrate(private_database, roles=RoleNames(*(f"{each}_{suffix}" for each in RoleNames._fields)))
    return prepare(private_database)


def test_every_argument_of_every_granted_function(
    private_database: Database, known: Mapping[str, Any]
) -> None:
    """A hostile value is refused by name with nothing changed, or `tests/operations.py` explains its success."""
    functions = granted_functions(private_database)
    assert {function.name for function in functions} == set(OPERATIONS), (
        "describe each in tests/operations.py"
    )
    attempts = Attempts(private_database)
    wrong = []
    for function in functions:
        given = sane(function, known)
        outcome, said = attempts.outcome(function, given)
        assert outcome == "success", f"the sane call of {function.signature} is {outcome}: {said}"
        for argument in function.arguments:
            for word, value in hostile_values(argument, given.get(argument.name)).items():
                outcome, said = attempts.outcome(function, {**given, argument.name: value})
                fine = outcome == "refused" or (
                    outcome == "success" and is_meant(function, argument.name, word)
                )
                if not fine and (argument.name not in given or given[argument.name] != value):
                    wrong.append(f"{function.name}({argument.name} => {word}): {outcome} {said}")
    assert wrong == [], f"{len(wrong)} hostile values:\n" + "\n".join(wrong)


@pytest.mark.parametrize("redelivery", ["fan_out", "kafka"])
def test_the_last_offsets_there_are(
    private_database: Database, known: Mapping[str, Any], redelivery: Any
) -> None:
    """A log that ends at 2⁶³ − 1 is leased, acknowledged, released and leased again to its end, however much is asked
    for."""
    state, at = State(private_database), SharePartition("g", "t", 2)
    first = MAX_OFFSET - 9
    state.initialize(at, "id", first, 1)
    single.observe(state, at, "id", first, MAX_OFFSET + 1, MAX_OFFSET + 1)
    lease = single.acquire(state, at, "m", None, 3, redelivery=redelivery)
    assert lease is not None
    for _ in range(2):
        single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
        lease = single.acquire(state, at, "m", None, 2, redelivery=redelivery)
        assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.RELEASE: lease.offsets})
    lease = single.acquire(state, at, "m", None, 2**62, redelivery=redelivery)
    assert lease is not None
    while lease is not None:
        single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
        lease = single.acquire(state, at, "m", None, 2**62, redelivery=redelivery)
    [status] = [each for each in state.figures.describe("g") if each.partition == 2]
    assert (status.spso, status.speo, status.lag) == (MAX_OFFSET + 1, MAX_OFFSET + 1, 0)
    assert state.figures.verify("g") == []


def test_offsets_to_the_last_are_a_set() -> None:
    """What the state calls its largest offset is one in Python too."""
    assert OffsetSet.of((MAX_OFFSET, MAX_OFFSET + 1)).count == 1
