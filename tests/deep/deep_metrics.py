"""A scrape over 10,000 share-partitions at work: how long it takes, and how large it is."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa
from starlette.testclient import TestClient

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.reports.history import Reports
from sharequeue.service import create_app

SHARE_PARTITIONS = 10_000
GROUPS = 20
SECONDS = 2.0
MOST_BYTES = 32_000_000


def fill(database: Database) -> None:
    """Have 10,000 share-partitions, each with records held, released, rejected and done, and some history."""
    names = [f'group {number} "quoted"' for number in range(GROUPS)]
    for name in names:
        alter_group_configs(database, name, {"errors.deadletterqueue.topic.name": f"dlq.{name[6:8].strip()}"})
    each = SHARE_PARTITIONS // GROUPS
    for name in names:
        for call in (
            "sharequeue.initialize(:g, 't', p, 'id', 0, 2)",
            "sharequeue.observe(:g, 't', p, 'id', 0, 100000, 100000)",
            "(select count(*) from sharequeue.acquire(:g, 't', p, null, 'member ' || p % 50, null, 100))",
            "(sharequeue.acknowledge_batches(:g, 't', p, null, 'member ' || p % 50, null, null, null,"
            " array[0, 40, 60], array[39, 59, 69], cast(array[1, 2, 3] as smallint[]))).error_code",
        ):
            database.rows(
                sa.text(f"select count({call}) from generate_series(0, :last) as p"),  # noqa: S608 - calls of ours
                g=name,
                last=each - 1,
            )
        Reports(database).record(name)


def test_a_scrape_of_10_000_share_partitions(settings: Settings, private_database: Database) -> None:
    """A scrape takes less than two seconds, and scrapes that come together take no longer."""
    fill(private_database)
    here = settings.replace(database_url=private_database.engine.url.render_as_string(hide_password=False))
    with TestClient(create_app(here, coordinate=False), base_url="http://localhost") as client:
        client.get("/metrics")
        took = []
        for _ in range(5):
            began = time.monotonic()
            answer = client.get("/metrics")
            took.append(time.monotonic() - began)
        with ThreadPoolExecutor(4) as pool:
            began = time.monotonic()
            list(pool.map(lambda _: client.get("/metrics"), range(4)))
            together = time.monotonic() - began
    series = len(re.findall(r"^sharequeue_share_partition_lag\{", answer.text, re.MULTILINE))
    database = re.search(r"^sharequeue_read_seconds (\S+)", answer.text, re.MULTILINE)
    print(
        f"scrape {[round(each, 2) for each in took]} s, four together {together:.2f} s, {len(answer.content)} bytes,"
    )
    print(f"{answer.text.count(chr(10))} lines, of it the database {database and database.group(1)} s")
    assert "sharequeue_database_up 1.0" in answer.text
    assert series == SHARE_PARTITIONS
    assert len(answer.content) < MOST_BYTES
    assert min(took) < SECONDS
    assert together < 2 * SECONDS
