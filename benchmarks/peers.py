"""How are procrastinate and pgqueuer driven at their fastest, by their own documentation?

Each in a database of its own on the benchmark's server, made by its own installer; jobs that do nothing, put in by
its own batch call, finished jobs deleted, every commit flushed. Installed with ``pip install 'sharequeue[bench]'``.

procrastinate: a worker with `concurrency`, `delete_jobs="always"`, and `wait=False`, which ends it when nothing is
left. pgqueuer: asyncpg, `durable`, its recommended autovacuum settings, a larger batch for short jobs, in mode
`drain`: what its performance guide and its own benchmark do.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

CONCURRENCY = 20
"""procrastinate's jobs side by side; jobs/s measured: 4 274, 10 295, 20 369, 50 325."""
MANAGERS, BATCH = 1, 500
"""pgqueuer's managers, and jobs a fetch of each. Its guide says more than 10 for short jobs; jobs/s measured: 5 × 10
3,600, 5 × 100 7,100, 1 × 100 5,700, 2 × 250 6,200, 1 × 500 8,000, 1 × 1,000 7,800."""


def address(url: str, database: str) -> str:
    """A database of this name on the server, made if it is not there; as the address that both libraries take."""
    parts = sa.make_url(url)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        there = connection.execute(
            sa.text("select from pg_database where datname = :name"), {"name": database}
        ).first()
        if there is None:
            connection.exec_driver_sql(f"create database {database}")
    engine.dispose()
    return parts.set(drivername="postgresql", database=database).render_as_string(hide_password=False)


async def _procrastinate(conninfo: str, jobs: int) -> float:
    import procrastinate

    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=conninfo, max_size=max(4, CONCURRENCY))
    )

    @app.task(name="nothing", queue="bench")
    async def nothing() -> None:
        """The job."""

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        for _ in range(0, jobs, 1000):
            await nothing.batch_defer_async(*({} for _ in range(min(jobs, 1000))))
        started = time.perf_counter()
        await app.run_worker_async(
            queues=["bench"],
            concurrency=CONCURRENCY,
            wait=False,
            delete_jobs="always",
            install_signal_handlers=False,
            listen_notify=False,
        )
        return jobs / (time.perf_counter() - started)


async def _pgqueuer(dsn: str, jobs: int) -> float:
    import asyncpg  # type: ignore[import-untyped]
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueExecutionMode

    connections = [await asyncpg.connect(dsn) for _ in range(MANAGERS)]
    done = 0

    async def nothing(job: Any) -> None:
        nonlocal done
        done += 1

    try:
        queries = Queries(AsyncpgDriver(connections[0]))
        if not await queries.schema_is_installed():
            await queries.install()
            await queries.optimize_autovacuum()
        for _ in range(0, jobs, 1000):
            count = min(jobs, 1000)
            await queries.enqueue(["nothing"] * count, [None] * count, [0] * count)
        managers = [PgQueuer(AsyncpgDriver(connection)) for connection in connections]
        for manager in managers:
            manager.entrypoint("nothing")(nothing)
        started = time.perf_counter()
        await asyncio.gather(
            *(
                manager.qm.run(
                    batch_size=BATCH,
                    mode=QueueExecutionMode.drain,
                    dequeue_timeout=timedelta(seconds=1),
                )
                for manager in managers
            )
        )
        taken = time.perf_counter() - started
        assert done == jobs, f"{done} of {jobs} jobs"
        return jobs / taken
    finally:
        for connection in connections:
            await connection.close()


def procrastinate_rate(url: str, jobs: int) -> float:
    """Jobs a second through procrastinate."""
    return asyncio.run(_procrastinate(address(url, "procrastinate"), jobs))


def pgqueuer_rate(url: str, jobs: int) -> float:
    """Jobs a second through pgqueuer."""
    return asyncio.run(_pgqueuer(address(url, "pgqueuer"), jobs))


def missing() -> list[str]:
    """Which of what this module needs is not installed."""
    from importlib.util import find_spec

    return [name for name in ("procrastinate", "pgqueuer", "asyncpg") if find_spec(name) is None]


def versions() -> str:
    """Which versions are installed."""
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("procrastinate", "pgqueuer", "asyncpg"))
