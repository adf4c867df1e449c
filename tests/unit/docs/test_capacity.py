"""The page on capacity counts the connections that the code can open."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import yaml

from sharequeue.consumer import share_consumer
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups import assignments, heartbeats
from sharequeue.local import postgres
from sharequeue.service.admission import PAGES_AT_ONCE, POOL_SIZE
from sharequeue.service.app import create_app
from sharequeue.spark.sinks.postgres.sink import PostgresTable

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "howto" / "capacity.md").read_text()
URL = "postgresql+psycopg2://nobody@127.0.0.1:1/none"
TABLE = {
    name: (int(keeps), int(most))
    for name, keeps, most in re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
}
FORMULA = [int(number) for number in re.findall(r"^ *(?:max_connections ≥|\+) (\d+)", PAGE, re.MULTILINE)]


def row(begins: str) -> tuple[int, int]:
    [found] = [counts for name, counts in TABLE.items() if name.startswith(begins)]
    return found


def bounds(database: Database) -> tuple[int, int]:
    """What the pool keeps, and what it opens at most."""
    pool = database.engine.pool
    size, overflow = pool.size(), pool._max_overflow  # type: ignore[attr-defined]
    return size, size + overflow


def test_every_pool_is_as_the_page_says() -> None:
    """The service's, a job's by its settings, a consumer's, and what tasks of a sink open."""
    settings = Settings({"database_url": URL, "bootstrap_servers": "127.0.0.1:1"})
    service = create_app(settings, coordinate=False).state.service
    assert bounds(service.database) == row("a replica of the service")
    # As many threads as that use them: it never opens more than it keeps.
    assert row("the same: its heartbeats") == (POOL_SIZE, POOL_SIZE)
    service.close()
    assert row("the same: its pages") == (PAGES_AT_ONCE, PAGES_AT_ONCE)
    with Database.open(settings) as job:
        assert bounds(job) == row("a Spark job") == row("a Dagster code server")
    [consumers] = re.findall(
        r"Database\.open\(config\.settings, pool_size=(\d+)\)", inspect.getsource(share_consumer)
    )
    with Database.open(settings, pool_size=int(consumers)) as consumer:
        assert bounds(consumer) == row("a `ShareConsumer`")
    assert row("tasks of a `PostgresTable`") == (0, PostgresTable("t").connections)


def test_the_formula_is_the_tables_sum() -> None:
    """Each summand is what the table has; deployments are computed by it, and the servers of ours allow as many."""
    parts = ("a replica of the service", "the same: its heartbeats", "the same: its pages")
    service = sum(row(part)[1] for part in parts)
    job, own = row("a Spark job")[1], 10
    consumer = row("a `ShareConsumer`")[1] + row("the same: its wait")[1]
    assert [service, job + own, 2 * (row("a Dagster code server")[1] + own), consumer, 10, 3] == FORMULA

    def needed(replicas: int, runs: int, consumers: int = 0) -> int:
        counts = (replicas, runs, 1, consumers, 1, 1)
        return sum(count * each for count, each in zip(counts, FORMULA, strict=True))

    runs = yaml.safe_load((ROOT / "dagster.yaml").read_text())["concurrency"]["runs"]["max_concurrent_runs"]
    manifest = next(yaml.safe_load_all((ROOT / "docker/kubernetes/run/service.yaml").read_text()))
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    allowed = int(compose["postgres"]["command"][-1].partition("=")[2])
    assert f"four runs at once | {needed(1, runs)} | {allowed} |" in PAGE
    assert f"four runs at once | {needed(manifest['spec']['replicas'], runs)} | yours: 200 |" in PAGE
    assert f"50 consumers | {needed(2, runs, 50)} |" in PAGE
    assert needed(1, runs) <= allowed == int(postgres._OPTIONS["max_connections"])


def test_no_assignor_uses_a_rack() -> None:
    """A rack is what a heartbeat stores; the code that assigns does not name it."""
    assert "rack_id" in inspect.getsource(heartbeats)
    assert "rack" not in inspect.getsource(assignments)
    others = [*ROOT.glob("sharequeue/groups/assignor*.py"), *ROOT.glob("sharequeue/groups/assignors/*.py")]
    assert all("rack" not in file.read_text() for file in others)
