"""The service's pages in a real browser; `make pictures` keeps what it sees in docs/pictures."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sharequeue.database import Database
from sharequeue.deadletters.letters import (
    DELIVERY_COUNT,
    EXCEPTION_CLASS,
    EXCEPTION_MESSAGE,
    GROUP,
    MESSAGE,
    MESSAGES,
    OFFSET,
    ORIGINAL_HEADER,
    ORIGINAL_TIMESTAMP,
    PARTITION,
    TOPIC,
)
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.clients import client_config
from sharequeue.reports.history import Reports
from sharequeue.state import State
from tests import single
from tests.deep.browser import Browser, browser
from tests.integration.service.test_service import serving
from tests.waiting import pass_time

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
HOSTILE = "<script>document.title = 'gone'</script><img src=x onerror=alert(1)>\"'&"
FOLDER = "PICTURES_FOLDER"
"""Where the pictures go; else into the test's own folder."""


def fill(database: Database) -> None:
    """Some groups in the middle of their work, with a day of history."""
    drawn, state, reports = random.Random(7), State(database), Reports(database)  # noqa: S311
    groups = {"flight-delays": ("flights", 6), "invoices": ("orders", 3), "mail": ("events", 2)}
    for group, (topic, partitions) in groups.items():
        configs = {"errors.deadletterqueue.topic.name": f"dlq.{group}", "sharequeue.retry.backoff.ms": "0"}
        alter_group_configs(database, group, configs)
        for partition in range(partitions):
            at = SharePartition(group, topic, partition)
            state.initialize(at, f"id-{topic}", 0, 2)
            single.observe(state, at, f"id-{topic}", 0, 40_000, 40_000)
    pass_time(database, 20)
    for hour in range(24):
        for group, (topic, partitions) in groups.items():
            for partition in range(partitions):
                at = SharePartition(group, topic, partition)
                end = 40_000 + 1500 * hour + drawn.randint(0, 800)
                single.observe(state, at, f"id-{topic}", 0, end, end)
                if hour == 23 and group != "mail":
                    continue
                for _ in range(2):
                    lease = single.acquire(state, at, "past", None, drawn.randint(500, 2000))
                    assert lease is not None
                    (run,) = lease.offsets.ranges
                    bad = OffsetSet.from_offsets(drawn.sample(range(*run), drawn.randint(0, 3)))
                    single.acknowledge(state, lease, {REJECT: bad, ACCEPT: OffsetSet.of(run) - bad})
                    while batch := state.dead_letters.open(at, 5000):
                        state.dead_letters.close(batch)
            reports.record(group)
        pass_time(database, 3600 if hour < 22 else 600)
    for number, (group, racks) in enumerate((("flight-delays", "ab"), ("invoices", "a"))):
        topic, partitions = groups[group]
        for rack in racks:
            run_id = f"{number}{rack}5f0c1e-2b7d-4c1a-9b8e-6d2f41a7c3e9"[:36]
            request = HeartbeatRequest(
                group, f"m-{rack}{number}", 0, f"rack-{rack}", (topic,), f"dagster-run-{run_id}", "10.0.0.7"
            )
            assert heartbeat(database, request, ServiceConfigs.of({}), "User:jobs").error_code == 0
        for partition in range(partitions):
            at = SharePartition(group, topic, partition)
            for _ in range(2):
                lease = single.acquire(state, at, f"m-{racks[partition % len(racks)]}{number}", None, 700)
                assert lease is not None
                offsets = [offset for run in lease.offsets.ranges for offset in range(*run)]
                cut = drawn.randint(100, 500)
                settled = OffsetSet.from_offsets(offsets[cut:])
                back = OffsetSet.from_offsets(drawn.sample(offsets[cut:], 60))
                bad = OffsetSet.from_offsets(drawn.sample(offsets[cut:], 9)) - back
                single.acknowledge(state, lease, {ACCEPT: settled - back - bad, RELEASE: back, REJECT: bad})
    state.administration.pause("invoices", "the ledger is closed until Monday", "orders", 2)
    reports.record("flight-delays")


def fill_letters(settings: Settings, database: Database) -> None:
    """Dead letters of flight-delays, as runs leave them, of every kind of content."""
    admin = AdminClient(client_config(settings))
    topics = [NewTopic("flights", 6, 1), NewTopic("dlq.flight-delays", 2, 1)]
    made = admin.create_topics(topics)
    try:
        for future in made.values():
            future.result(30)
    except KafkaException:
        return  # the test before has filled them
    flights = (
        b'{"carrier": "UA", "flight": 1545, "origin": "EWR", "dep_delay": null}',
        b'{"carrier": "AA", "flight": 1141, "origin": "JFK", "dep_delay": "n/a"}',
        HOSTILE.encode(),
        b"\0\0\0\0\x2a\x02\x04UA\xd2\x18\x06EWR",
        None,
    )
    errors = (
        ("ValueError", "dep_delay is null"),
        ("ValueError", "could not convert string to float: 'n/a'"),
        ("json.JSONDecodeError", HOSTILE),
        ("UnicodeDecodeError", "'utf-8' codec can't decode byte 0xd2"),
        ("TypeError", "the value is null"),
    )
    producer = Producer(client_config(settings))
    for number in range(48):
        kind = 0 if number % 3 else number // 3 % len(flights)
        cause = "exhausted" if number % 7 == 0 else "rejected"
        headers = {
            TOPIC: "flights",
            PARTITION: str(number % 6),
            OFFSET: str(41_000 + 13 * number),
            GROUP: "flight-delays",
            DELIVERY_COUNT: "5" if cause == "exhausted" else "1",
            MESSAGE: MESSAGES[cause],
            EXCEPTION_CLASS: errors[kind][0],
            EXCEPTION_MESSAGE: errors[kind][1],
            ORIGINAL_TIMESTAMP: "1795000000000",
            f"{ORIGINAL_HEADER}source": "bts",
            f"{ORIGINAL_HEADER}{HOSTILE}": HOSTILE,
        }
        producer.produce(
            "dlq.flight-delays",
            flights[kind],
            f"UA-{1545 + number}".encode(),
            partition=number % 2,
            headers=[(name, value.encode()) for name, value in headers.items()],
        )
    producer.flush(30)


@pytest.fixture
def address(settings: Settings, private_database: Database) -> Iterator[str]:
    """Give the address of a service with groups to look at."""
    fill(private_database)
    fill_letters(settings, private_database)
    url = private_database.engine.url.render_as_string(hide_password=False)
    with serving(settings.replace(database_url=url), coordinate=False) as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give where the pictures go."""
    return Path(os.environ.get(FOLDER) or tmp_path)


PAGES = {
    "groups": "/",
    "group": "/groups/flight-delays",
    "report": "/v1/reports/flight-delays",
    "letters": "/dead-letters/flight-delays",
    "letter": "/dead-letters/flight-delays?partition=0&offset=6",
}


LOOKS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("", 1280, {}),
    ("-phone", 390, {"mobile": True, "scale": 1.5}),
    ("-dark", 1280, {"dark": True}),
)
IN_DOCS = {"groups": 900, "group": 1100, "group-phone": 1350, "letters": 900}
"""The pictures of the docs, with their heights."""


def usable(page: Browser, url: str, width: int) -> None:
    """The page fits the window; nothing was forbidden, nothing failed, nothing came from elsewhere."""
    page.go(url)
    assert page.overflow() <= 0, f"{url} is wider than {width}"
    assert page.complaints == []
    assert set(
        page.value("performance.getEntriesByType('resource').map(each => new URL(each.name).origin)")
    ) <= {page.value("location.origin")}
    assert page.value("getComputedStyle(document.querySelector('main')).paddingBottom") != "0px"


def test_every_page_in_a_browser(address: str, folder: Path) -> None:
    """On a desk and on a telephone, light and dark: it fits, it is styled, and no policy is broken."""
    with browser() as page:
        for name, path in PAGES.items():
            for look, width, options in LOOKS:
                page.window(width, 900, **options)
                usable(page, address + path, width)
                height = IN_DOCS.get(f"{name}{look}")
                if height or not os.environ.get(FOLDER):
                    page.picture(folder / f"service-{name}{look}.png", height)


def test_pages_of_ten_thousand_share_partitions(
    settings: Settings, private_database: Database, told: list[str]
) -> None:
    """A page of them is whole, and takes seconds at most."""
    alter_group_configs(private_database, "g", {})
    private_database.rows(
        sa.text(
            "insert into sharequeue.share_partitions"
            " (group_id, topic, partition, topic_id, state_epoch, spso, speo, log_end, observed_at)"
            " select 'g', 't', n, 'id', 1, 0, 0, n, sharequeue.clock() from generate_series(0, 9999) as n returning 1"
        )
    )
    Reports(private_database).record("g")
    with private_database.transaction() as connection:
        connection.execute(sa.text("analyze sharequeue.share_partitions, sharequeue.share_partition_history"))
    url = private_database.engine.url.render_as_string(hide_password=False)
    with serving(settings.replace(database_url=url), coordinate=False) as address:
        for path in ("/", "/groups/g", "/groups/g?page=400"):
            began = time.monotonic()
            answer = httpx.get(f"{address}{path}", timeout=30)
            seconds = time.monotonic() - began
            told.append(f"{path}: {seconds:.2f} s, {len(answer.content):,} bytes")
            assert answer.status_code == 200
            assert seconds < 12
            assert len(answer.content) < 400_000
