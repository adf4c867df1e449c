"""The real engine for tests: an embedded Postgres, a clock that the test moves, records from a list.

- `embedded_postgres` starts a `TemporaryPostgres` with the schema, once per test session;
- its `queue()` gives each test a `Queue`: a database of its own, whose `state` is the `State` of production;
- `Queue.produce` keeps a list of `Record`s; `Queue.handle` leases some of them, runs a pipeline's handler and
  acknowledges by its outcomes (`Handled`); `Queue.write_dead_letters` returns the dead letters (`GivenUpRecord`).

There is no broker and no service, and the rules are those of the SQL functions and of a run. It needs
`sharequeue[embedded]`; `handle` needs Spark.
"""

from __future__ import annotations

from sharequeue.testing.queue import GivenUpRecord, Handled, Queue, Record
from sharequeue.testing.server import TemporaryPostgres, embedded_postgres

__all__ = ["GivenUpRecord", "Handled", "Queue", "Record", "TemporaryPostgres", "embedded_postgres"]
