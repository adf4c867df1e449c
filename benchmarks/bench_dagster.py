"""What does Dagster's own side cost: loading the definitions, and a tick of a sensor that finds nothing to do?

Loading in a process of its own, with the imports: a code server does that at its start, and every run again. A tick
with the resources made and closed around it, as the daemon has it: a new connection each time, Dagster's storage in
the same Postgres. A group of 4 share-partitions, and one of 100; all drained. CPU is this side's, without Postgres's.

    .venv/bin/python benchmarks/bench_dagster.py [--full]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import sqlalchemy as sa
from rig import FULL, median, report, server, spread

from sharequeue.dagster import ShareGroup, StateResource, share_group_defs
from sharequeue.dagster.resources import SettingsResource
from sharequeue.database import Database
from sharequeue.state import State

LOADS, TICKS = (7, 100) if FULL else (3, 30)
REPOSITORY = Path(__file__).parents[1]
LOAD = "from orchestration.definitions import defs; defs().get_repository_def()"


Took = tuple[float, float]
"""Seconds by the clock, and of a processor."""


def load() -> Took:
    """One load, the start of Python included."""
    started, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-c", LOAD], cwd=REPOSITORY, check=True)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, used


def drained(database: Database, group_id: str, partitions: int) -> ShareGroup:
    """A group whose share-partitions have nothing left to do."""
    with State(database).transaction() as (connection, _):
        for statement in (
            "insert into sharequeue.share_groups (group_id) values (:group)",
            "select sharequeue.initialize(:group, 't', n, 'id', 1000, 1) from generate_series(1, :n) as n",
            "select sharequeue.observe(:group, 't', n, 'id', 0, 1000, 1000) from generate_series(1, :n) as n",
        ):
            connection.execute(sa.text(statement), {"group": group_id, "n": partitions})
    return ShareGroup(group=group_id, topics=["t"], pipeline="pipelines.flights.pipeline:flight_delays")


def ticks(instance: dg.DagsterInstance, group: ShareGroup, sensor_name: str) -> list[Took]:
    """Each tick; a first one warms up and is thrown away."""
    sensor = next(each for each in share_group_defs(group).sensors or () if each.name == sensor_name)
    assert isinstance(sensor, dg.SensorDefinition)
    resources = {"queue": StateResource(settings=SettingsResource())}
    cursor: list[str | None] = [None]

    def tick() -> Took:
        started, used = time.perf_counter(), time.process_time()
        with dg.build_sensor_context(instance, cursor[0], resources=resources) as context:
            cursor[0] = sensor.evaluate_tick(context).cursor
        return time.perf_counter() - started, time.process_time() - used

    return [tick() for _ in range(TICKS + 1)][1:]


def row(what: str, took: list[Took], unit: float) -> tuple[str, str, str, str]:
    """A line of the table."""
    by_clock, used = ([each[at] * unit for each in took] for at in (0, 1))
    return what, f"{median(by_clock):.2f}", spread(by_clock), f"{median(used):.2f}"


def main() -> None:
    """Measure, and print."""
    with ExitStack() as closing:
        url = closing.enter_context(server())
        database = closing.enter_context(Database(url))
        os.environ["SHAREQUEUE_DATABASE_URL"] = url
        os.environ["DAGSTER_HOME"] = closing.enter_context(tempfile.TemporaryDirectory())
        parts = sa.make_url(url).set(database="dagster")
        os.environ["SHAREQUEUE_DAGSTER_URL"] = parts.render_as_string(hide_password=False)
        (Path(os.environ["DAGSTER_HOME"]) / "dagster.yaml").write_text(
            (REPOSITORY / "dagster.yaml").read_text()
        )
        instance = closing.enter_context(dg.DagsterInstance.get())
        loads = [load() for _ in range(LOADS)]
        rows = [row("load of the definitions, s", loads, 1)]
        for partitions in (4, 100):
            group = drained(database, f"idle-{partitions}", partitions)
            for sensor in ("lag", "observe"):
                times = ticks(instance, group, f"{group.name}_{sensor}")
                what = f"idle tick of {sensor}, {partitions} share-partitions, ms"
                rows.append(row(what, times, 1e3))
        report(url, "Dagster's own side", ("", "median", "smallest … largest", "CPU, median"), rows)


if __name__ == "__main__":
    main()
