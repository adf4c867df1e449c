"""The DAG of `docs/howto/elsewhere.md` in a real Airflow 3 with an environment of its own.

A scheduler starts it, a failed try is retried, a run is cleared, days are backfilled: each record is accepted once.
Airflow is installed beside the jars, once.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from tests.fixtures.pipelines import Produce
from tests.fixtures.stack import MakeTopic, jars_folder
from tests.servers.ports import free_port
from tests.waiting import wait_until
from tools.pages import ROOT

pytestmark = pytest.mark.deep

AIRFLOW = "apache-airflow>=3,<4"
RECORDS = 300

MODULE = """\
from pyspark.sql import functions as fn

from sharequeue.spark import pipeline


@pipeline(group={group!r}, topics=[{topic!r}], sink="orders")
def orders(records):
    return records.withColumn("outcome", fn.lit("accept"))
"""

COMMAND = """\
#!/bin/sh
# The first try fails, as if the machine had no memory left.
if [ ! -e failed ]; then touch failed; exit 1; fi
exec {command} "$@"
"""


@dataclass(frozen=True)
class Airflow:
    """An Airflow that runs, with its database of SQLite."""

    command: Path
    home: Path
    environment: dict[str, str]

    def run(self, *arguments: str) -> None:
        """Run a command of Airflow."""
        ran = subprocess.run(
            [self.command, *arguments], env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def rows(self, query: str, *parameters: str) -> list[tuple[object, ...]]:
        """Query its database."""
        with closing(sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True, timeout=30)) as opened:
            return opened.execute(query, parameters).fetchall()

    def runs(self, kind: str) -> list[tuple[object, ...]]:
        """Return the states of the runs of this kind (scheduled, backfill), with the tries of the task `drain`."""
        return self.rows(
            "select r.state, t.try_number from dag_run r join task_instance t using (dag_id, run_id)"
            " where r.dag_id = 'orders' and t.task_id = 'drain' and r.run_type = ? order by r.logical_date",
            kind,
        )

    def wait_for_first(self, kind: str, *expected: tuple[object, ...]) -> None:
        """Wait until the first runs of this kind are as expected."""

        def seen() -> list[tuple[object, ...]]:
            return self.runs(kind)[: len(expected)]

        wait_until(lambda: seen() == list(expected), 420, lambda: f"{seen()}\n{self.log()}")

    def log(self) -> str:
        """Return the end of each task's log."""
        logs = sorted((self.home / "logs").rglob("attempt=*.log"))
        return "\n".join(f"{each}\n{each.read_text()[-3000:]}" for each in logs)


def _installed() -> Path:
    """Return the folder of Airflow's environment; install it there if it is missing."""
    folder = jars_folder().parent / "airflow"
    command = folder / "bin" / "airflow"
    if not command.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", AIRFLOW], check=True)
    return command


@pytest.fixture
def airflow(
    tmp_path: Path,
    settings: Settings,
    database: Database,
    service: str,
    group: str,
    topic: str,
    make_topic: MakeTopic,
) -> Iterator[Airflow]:
    """Give an Airflow with the page's DAG, which starts at every minute; the first try of its command fails."""
    make_topic(2, topic)
    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    shop, home = tmp_path / "shop", tmp_path / "airflow"
    (shop / ".venv/bin").mkdir(parents=True)
    (shop / "my_module.py").write_text(MODULE.format(group=group, topic=topic))
    wrapped = shop / ".venv/bin/sharequeue"
    wrapped.write_text(COMMAND.format(command=Path(sys.executable).with_name("sharequeue")))
    wrapped.chmod(0o755)
    page = (ROOT / "docs/howto/elsewhere.md").read_text()
    (code,) = (block for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "@dag(" in block)
    changed = (
        code.replace("/srv/shop", str(shop))
        .replace("*/15 * * * *", "* * * * *")
        .replace("timedelta(minutes=1)", "timedelta(seconds=1)")
        .replace("pendulum.datetime(2026, 1, 1", "pendulum.datetime(2025, 1, 1")
    )
    (home / "dags").mkdir(parents=True)
    (home / "dags/orders.py").write_text(changed)
    command, port = _installed(), free_port()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "PYTHON", "VIRTUAL"))
    } | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__TRIGGERER__TRIGGERER_LOG_SERVER_PORT": str(free_port()),
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "SHAREQUEUE_HOME": str(settings.home),
        "SHAREQUEUE_OUTPUT": str(tmp_path / "output"),
    }
    with (tmp_path / "standalone.log").open("w") as log:
        served = subprocess.Popen(
            [command, "standalone"], env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            running = Airflow(command, home, environment)
            wait_until(
                lambda: (
                    (home / "airflow.db").exists()
                    and bool(running.rows("select 1 from sqlite_master where name = 'serialized_dag'"))
                    and bool(running.rows("select 1 from serialized_dag where dag_id = 'orders'"))
                ),
                240,
                lambda: (tmp_path / "standalone.log").read_text()[-5000:],
            )
            yield running
        finally:
            os.killpg(served.pid, signal.SIGTERM)
            try:
                served.wait(60)
            finally:
                if served.poll() is None:
                    os.killpg(served.pid, signal.SIGKILL)


def test_the_dag_is_scheduled_retried_cleared_and_backfilled(
    airflow: Airflow, produce: Produce, state: State, group: str, topic: str
) -> None:
    """The scheduler starts a run at its minute; the task's second try drains the queue. A run that is cleared works
    again and finds nothing. A backfill of two minutes works through what came since. No record is accepted twice.
    """

    def accepted() -> tuple[int, int]:
        found = state.figures.describe(group)
        return sum(each.accepted for each in found), sum(each.lag or 0 for each in found)

    produce(topic, 0, range(RECORDS))
    airflow.run("dags", "unpause", "orders")
    airflow.wait_for_first("scheduled", ("success", 2))
    assert accepted() == (RECORDS, 0)

    (first,) = airflow.rows("select min(logical_date) from dag_run where run_type = 'scheduled'")[0]
    at = str(first).replace(" ", "T")
    airflow.run("tasks", "clear", "--yes", "--start-date", at, "--end-date", at, "orders")
    airflow.wait_for_first("scheduled", ("success", 3))
    assert accepted() == (RECORDS, 0)

    produce(topic, 1, range(RECORDS))
    begin = datetime.now(UTC) - timedelta(days=2)
    end = begin + timedelta(minutes=1)
    dates = ("--from-date", f"{begin:%Y-%m-%dT%H:%M}:00", "--to-date", f"{end:%Y-%m-%dT%H:%M}:00")
    airflow.run("backfill", "create", "--dag-id", "orders", *dates)
    airflow.wait_for_first("backfill", ("success", 1), ("success", 1))
    assert accepted() == (2 * RECORDS, 0)
