"""What does every benchmark of the state need?

A Postgres of its own with nothing else in it, sides that take turns so that a busy machine slows both, medians,
and a table that says on what it was taken. What is measured is the scripts' matter.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg2
import sqlalchemy as sa
from psycopg2 import extensions
from rich.console import Console
from rich.table import Table

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.local import postgres
from sharequeue.local.home import Home

FULL = "--full" in sys.argv
"""Whether the long form was asked for; the short one ends within a minute."""

Side = Callable[[], float]


@contextmanager
def server() -> Iterator[str]:
    """Runs a Postgres of its own, fsync on, and gives the URL of a migrated database with group ``bench``."""
    home = Home.at(tempfile.mkdtemp(prefix="sharequeue-bench-"))
    home.path.chmod(0o755)  # as root, Postgres runs as `nobody` and must get in
    for folder in (home.logs, home.run, home.postgres):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        url = postgres.url(home, "sharequeue", postgres.ensure(home, lambda line: None))
        with Database(url) as database:
            migrate(database)
            # Locks that last longer than the making of what is measured.
            publish_service_configs(
                database, ServiceConfigs.of({"group.share.max.record.lock.duration.ms": "3600000"})
            )
            with database.transaction() as connection:
                connection.execute(sa.text("insert into sharequeue.share_groups (group_id) values ('bench')"))
                connection.execute(
                    sa.text(
                        "insert into sharequeue.group_configs"
                        " values ('bench', 'share.partition.max.record.locks', '2147483647')"
                    )
                )
        yield url
    finally:
        postgres.stop(home)
        shutil.rmtree(home.path, ignore_errors=True)


def connect(url: str) -> extensions.connection:
    """One plain connection, every statement its own transaction."""
    parts = sa.make_url(url)
    connection = psycopg2.connect(
        host=parts.host,
        port=parts.port,
        user=parts.username,
        password=parts.password,
        dbname=parts.database,
    )
    connection.autocommit = True
    return connection


def share_partition(cursor: Any, topic: str, records: int, number: int = 0) -> None:
    """Make a share-partition of group ``bench`` whose log has so many records."""
    cursor.execute("select sharequeue.initialize('bench', %s, %s, 'id', 0, 1)", (topic, number))
    cursor.execute(
        "select sharequeue.observe('bench', %s, %s, 'id', 0, %s, %s)", (topic, number, records, records)
    )


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def in_turn(sides: Sequence[Side], rounds: int) -> list[list[float]]:
    """What each side measures in each round, sides in turn; a first round warms up and is thrown away."""
    measured: list[list[float]] = [[] for _ in sides]
    for round_ in range(rounds + 1):
        for side, run in enumerate(sides):
            figure = run()
            if round_ > 0:
                measured[side].append(figure)
    return measured


def report(url: str, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, and under it the command, the machine, the load and the versions."""
    table = Table(title=title, title_justify="left")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = Console(width=118, highlight=False)
    console.print(table)
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("show server_version")
        version = cursor.fetchone()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    console.print(
        f"{command} · {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · {os.cpu_count()} × {_processor()},"
        f" load {load} · PostgreSQL {version[0] if version else '?'} · Python {platform.python_version()}"
    )


def median(figures: Sequence[float]) -> float:
    """The median."""
    return statistics.median(figures)


def spread(figures: Sequence[float], unit: float = 1.0) -> str:
    """The smallest and the largest of them, in a unit."""
    return f"{min(figures) * unit:,.1f} … {max(figures) * unit:,.1f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )
