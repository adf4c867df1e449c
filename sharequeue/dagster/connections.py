"""The connections of a run to Dagster's own database.

Dagster's storages in Postgres open a connection for each event, and a run of a share group writes some 250 of them:
that takes a second, and more on a busy machine. A run keeps its connections instead, as Dagster's webserver does.
Each is tested before it is used again, so that a restart of Postgres is noticed.
"""

from __future__ import annotations

from typing import Any

import dagster as dg
import sqlalchemy as sa

__all__ = ["keep_connections"]


def keep_connections(instance: dg.DagsterInstance) -> None:
    """Let the storages of an instance keep their connections; storages outside of Postgres are not changed."""
    if not any(isinstance(engine.pool, sa.NullPool) for engine in _engines(instance)):
        return
    instance.optimize_for_webserver(statement_timeout=0, pool_recycle=-1, max_overflow=-1)
    for engine in _engines(instance):
        sa.event.listen(engine, "checkout", _ask)


def _engines(instance: dg.DagsterInstance) -> list[sa.Engine]:
    """Return the engines of runs and events. Dagster has no public way to them (1.13)."""
    storages = (instance.run_storage, instance.event_log_storage)
    found = (getattr(storage, "_engine", None) for storage in storages)
    return [
        engine for engine in found if isinstance(engine, sa.Engine) and engine.dialect.name == "postgresql"
    ]


def _ask(connection: Any, record: Any, proxy: Any) -> None:
    """Test a connection. If it is dead, the pool opens another one."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
    except Exception as error:
        raise sa.exc.DisconnectionError(str(error)) from error
