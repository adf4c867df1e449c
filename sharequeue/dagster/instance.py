"""What a run needs of its Dagster instance, and its connections to the instance's database.

Dagster's storages in Postgres open a connection for each event, and a run of a share group writes some 250 of them:
that takes a second, and more on a busy machine. A run keeps its connections instead, as Dagster's webserver does.
Each is tested before it is used again, so that a restart of Postgres is noticed.
"""

from __future__ import annotations

from typing import Any

import dagster as dg
import sqlalchemy as sa

__all__ = ["keep_connections", "missing_settings"]


def missing_settings(instance: dg.DagsterInstance, pool: str | None) -> list[str]:
    """Return what the settings of an instance lack for runs of share groups whose Spark steps are in `pool`."""
    if instance.is_ephemeral:
        return []
    found = []
    if pool is not None and not _limited(instance, pool):
        found.append(
            f"the pool {pool!r} has no limit in this Dagster instance, so any number of Spark sessions may run at "
            f"the same time: set one with `dagster instance concurrency set {pool} 2`"
        )
    if not instance.run_retries_enabled:
        found.append(
            "this Dagster instance does not retry failed runs: set `run_retries: {enabled: true}` in its dagster.yaml"
        )
    if not instance.run_monitoring_enabled:
        found.append(
            "this Dagster instance does not end runs that never start, and none whose machine went down: "
            "set `run_monitoring: {enabled: true, max_runtime_seconds: 21600}` in its dagster.yaml"
        )
    elif not _sees_ends(instance):
        found.append(
            f"the {type(instance.run_launcher).__name__} of this Dagster instance cannot see that the process of a "
            "run is gone, so run monitoring never ends a run whose machine went down, which keeps its place in the "
            "pool (the sensors and the schedule of the share group end such runs, if they are on): set "
            "`run_monitoring: {enabled: true, max_runtime_seconds: 21600}` in its dagster.yaml"
        )
    return found


def _sees_ends(instance: dg.DagsterInstance) -> bool:
    """Return whether run monitoring ends a run whose process is gone."""
    return instance.run_launcher.supports_check_run_worker_health or bool(
        instance.run_monitoring_max_runtime_seconds
    )


def _limited(instance: dg.DagsterInstance, pool: str) -> bool:
    if instance.get_concurrency_config().pool_config.default_pool_limit is not None:
        return True
    return any(each.name == pool for each in instance.event_log_storage.get_pool_limits())


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
