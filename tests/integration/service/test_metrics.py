"""The metrics of the service: every one against a scrape, what they count, and how long a scrape may take."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from sharequeue.database import Database
from sharequeue.domain.errors import CoordinatorNotAvailable
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgementBatch, AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.reports.history import Reports
from sharequeue.service import create_app
from sharequeue.service.metrics import figures, registry
from sharequeue.service.metrics.figures import Reader
from sharequeue.state import State
from sharequeue.state.replicas import LATE_SECONDS, hear_replica
from tests import single
from tests.integration.service.test_service import serving
from tests.waiting import PATIENCE_S, pass_time, wait_until
from tools.pages import ROOT

GROUP = 'a"}b\\c\\n' + "d" * 241
"""249 characters, with all that means something in Prometheus's format. Line ends are refused before that."""
AT = SharePartition(GROUP, "t", 0)
PER_PROCESS = re.compile(
    "# |sharequeue_(heartbeats|request_|statement_|replica_|fault|read_seconds|group_oldest|work_age"
    "|share_partition_oldest|member_oldest)"
)
"""What two replicas may show differently: what each counts itself, and ages."""


@pytest.fixture
def here(settings: Settings, private_database: Database) -> Settings:
    """Give settings that lead to a database of this test alone."""
    return settings.replace(database_url=private_database.engine.url.render_as_string(hide_password=False))


@pytest.fixture
def client(here: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Give a client of a service in this process, which does nothing by itself, and has time for its scrapes."""
    monkeypatch.setattr(figures, "READ_SECONDS", 60.0)
    monkeypatch.setattr(registry, "SCRAPE_SECONDS", 120.0)
    with TestClient(create_app(here, coordinate=False), base_url="http://localhost") as client:
        yield client


def scraped(client: httpx.Client | TestClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the values of a scrape by name and labels."""
    response = client.get("/metrics")
    assert response.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def work(database: Database) -> State:
    """Have a group with records that ended in every way, and some that a member holds."""
    state = State(database)
    alter_group_configs(database, GROUP, {"share.delivery.count.limit": 2})
    state.initialize(AT, "id", 0, 2)
    single.observe(state, AT, "id", 0, 1000, 1000)
    lease = single.acquire(state, AT, "m", None, 10)
    assert lease is not None
    single.acknowledge(
        state,
        lease,
        {
            AcknowledgeType.ACCEPT: OffsetSet.parse("{[0,5)}"),
            AcknowledgeType.RELEASE: OffsetSet.parse("{[5,7)}"),
            AcknowledgeType.REJECT: OffsetSet.parse("{[7,8)}"),
            AcknowledgeType.GAP: OffsetSet.parse("{[8,9)}"),
        },
    )
    state.fetches.acknowledge_batches(AT, "m", [AcknowledgementBatch.of(9, 9, AcknowledgeType.RENEW)])
    pass_time(database, 60)
    state.sweep()
    single.acquire(state, AT, "m", None, 3, request_id=uuid4())
    return state


@pytest.mark.rule("R-LT-5")
def test_figures_of_a_group(client: TestClient, private_database: Database) -> None:
    """Every figure of a group whose records ended in every way, under a name that could forge a line."""
    work(private_database)
    found = scraped(client)

    def value(name: str, **labels: str) -> float | None:
        return found.get((name, frozenset(labels.items())))

    group = {"group": GROUP}
    acknowledged = {
        kind: value("kafka_server_sharegroupmetrics_recordacknowledgements_total", ackType=kind, **group)
        for kind in ("Accept", "Release", "Reject", "Renew")
    }
    assert acknowledged == {"Accept": 5, "Release": 2, "Reject": 1, "Renew": 1}
    ended = {
        outcome: value("sharequeue_group_finished_records_total", outcome=outcome, **group)
        for outcome in ("accepted", "rejected", "exhausted", "gap")
    }
    assert ended == {"accepted": 5, "rejected": 1, "exhausted": 0, "gap": 1}
    partition = {**group, "topic": "t", "partition": "0"}
    of_kafka = "kafka_server_sharepartitionmetrics_"
    assert value(of_kafka + "acquisitionlocktimeout_total", **partition) == 1
    assert value(of_kafka + "inflightbatchcount", **partition) == 2
    status = State(private_database).figures.describe(GROUP)[0]
    assert value(of_kafka + "inflightmessagecount", **partition) == status.speo - status.spso
    for name in ("lag", "acquired_records", "available_records"):
        figure = getattr(status, name.removesuffix("_records"))
        assert value(f"sharequeue_share_partition_{name}", **partition) == figure, name
    assert value("sharequeue_share_partition_status", status="active", **partition) == 1
    assert value("sharequeue_member_acquired_records", member="m", **group) == 3
    # Since the acquire: the oldest record is one that the member holds.
    oldest = value("sharequeue_share_partition_oldest_record_age_seconds", **partition)
    assert oldest is not None
    assert 0 <= oldest < 30


def test_every_replica_shows_the_same(here: Settings, client: TestClient, private_database: Database) -> None:
    """Two services on one database: only what a process counts itself, and ages, may differ."""
    work(private_database)
    with TestClient(create_app(here, coordinate=False), base_url="http://localhost") as other:
        texts = [each.get("/metrics").text.splitlines() for each in (client, other)]
    first, second = ([line for line in lines if not PER_PROCESS.match(line)] for lines in texts)
    assert first == second
    assert any(line.startswith("kafka_server_sharegroupmetrics_recordack") for line in first)


def test_every_metric_of_the_page_is_in_a_scrape(client: TestClient, private_database: Database) -> None:
    """The page and a scrape have the same metrics, types and meanings, and no series has other labels."""
    work(private_database)
    client.post(
        "/v1/share-group-heartbeat",
        json={"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": []},
    )
    page = (ROOT / "docs/reference/metrics.md").read_text()
    documented = {}
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", page, re.MULTILINE):
        documented[name] = (kind, set(re.findall(r"`(\w+)`", labels)))
    shown = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        kind = {"unknown": "untyped"}.get(family.type, family.type)
        name = family.name + ("_total" if kind == "counter" else "")
        shown[name] = kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == documented[name][1], name
    assert shown == {name: kind for name, (kind, _) in documented.items()}


def test_a_database_that_stands_still_holds_up_no_scrape(here: Settings) -> None:
    """Scrapes are answered while the database says nothing, and hold one connection together."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        nowhere = here.replace(
            database_url=f"postgresql+psycopg2://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        )
        app = create_app(nowhere, coordinate=False)
        with TestClient(app, base_url="http://localhost") as client, ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: client.get("/metrics"), range(6)))
            assert all("sharequeue_database_up 0.0" in each.text for each in answers)
            assert len({each.headers["content-type"] for each in answers}) == 1
            silent.setblocking(False)
            waiting = 0
            while True:
                try:
                    silent.accept()[0].close()
                except BlockingIOError:
                    break
                waiting += 1
            assert waiting == 1


def test_figures_of_a_group_are_sums(private_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all its share-partitions; of the members there are only those with the oldest locks."""
    monkeypatch.setattr(figures, "MOST_MEMBERS", 3)
    state = State(private_database)
    alter_group_configs(private_database, "g", {"share.delivery.count.limit": 2})
    for partition in range(5):
        state.initialize(SharePartition("g", "t", partition), "id", 0, 2)
        single.observe(state, SharePartition("g", "t", partition), "id", 0, 10, 10)
        single.acquire(state, SharePartition("g", "t", partition), f"m{partition}", None, 1)
    read = Reader(private_database).read()
    assert (len(read.share_partitions), len(read.members)) == (5, 3)
    assert read.groups[0]["lag"] == 50


@pytest.mark.usefixtures("standing_clock")
def test_the_oldest_record_is_as_old_as_a_scrape_knows_it(private_database: Database) -> None:
    """Without a report, its age counts from the scrape that first saw it."""
    now = [1000.0]
    state, at = State(private_database), SharePartition("g", "t", 0)
    alter_group_configs(private_database, "g", {"share.delivery.count.limit": 2})
    state.initialize(at, "id", 0, 2)
    single.observe(state, at, "id", 0, 1000, 1000)
    reader = Reader(private_database, monotonic=lambda: now[0])
    reader.read()
    now[0] += 30
    assert reader.read().groups[0]["oldest_waits_seconds"] == pytest.approx(30)


@pytest.mark.usefixtures("standing_clock")
def test_a_replica_that_has_just_begun_sees_that_a_record_is_older_than_a_day(
    private_database: Database,
) -> None:
    """From reports, an hour apart: the alert about old records does not end when replicas are restarted."""
    state, at = State(private_database), SharePartition("g", "t", 0)
    alter_group_configs(private_database, "g", {"share.delivery.count.limit": 2})
    state.initialize(at, "id", 0, 2)
    single.observe(state, at, "id", 0, 1000, 1000)
    ages = []
    for _ in range(28):
        Reports(private_database).record("g")
        pass_time(private_database, 3_600)
        ages.append(Reader(private_database).read().groups[0]["oldest_waits_seconds"])
    assert max(ages[:23]) < 86_400
    assert min(ages[24:]) > 86_400


@pytest.mark.usefixtures("standing_clock")
def test_work_that_no_replica_does_is_late(client: TestClient, private_database: Database) -> None:
    """The ages come from the database: a replica that does nothing itself says that no other does either."""
    hear_replica(private_database, "other", writes_letters=True)
    private_database.rows(sa.text("select sharequeue.note_service_work('other', 1, 1, 1, 1) as noted"))
    ready = client.get("/ready").json()
    assert ready["work"]["watch"]["this_replica_seconds"] is None
    assert ready["work"]["watch"]["any_replica_seconds"] == 1
    assert [each for each in ready["faults"] if each["kind"].endswith("_late")] == []
    pass_time(private_database, max(LATE_SECONDS.values()) + 1)
    ready = client.get("/ready").json()
    assert (ready["ready"], ready["degraded"]) == (True, True)
    late = {each["kind"]: each["age_seconds"] for each in ready["faults"] if each["kind"].endswith("_late")}
    assert set(late) == {"watch_late", "sweep_late", "journal_late", "dead_letters_late"}
    assert all(age > 60 for age in late.values())
    found = scraped(client)
    assert found["sharequeue_faults", frozenset({("kind", "watch_late")})] == 1
    assert found["sharequeue_fault_age_seconds", frozenset({("kind", "watch_late")})] > 60
    # A service that was stopped, and started again without dead letters, is not missed.
    hear_replica(private_database, "other", writes_letters=True, stops=True)
    kinds = {each["kind"] for each in client.get("/ready").json()["faults"]}
    assert kinds == late.keys() - {"dead_letters_late"}


def test_a_replica_at_work_says_so(here: Settings, private_database: Database) -> None:
    """A running service records its ages; the age of a fault grows until the work recovers."""
    with serving(here) as url, httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:

        def ready() -> dict[str, Any]:
            told: dict[str, Any] = client.get("/ready").json()
            return told

        def age_of_sweep() -> float:
            ages = [each["age_seconds"] for each in ready()["faults"] if each["kind"] == "sweep"]
            return float(ages[0]) if ages else -1.0

        wait_until(lambda: None not in [each["any_replica_seconds"] for each in ready()["work"].values()])
        wait_until(lambda: ready()["faults"] == [])
        assert ready()["degraded"] is False
        with private_database.transaction() as connection:
            connection.execute(sa.text("alter function sharequeue.sweep(integer) rename to swept_away"))
        wait_until(lambda: age_of_sweep() >= 0)
        first = age_of_sweep()
        wait_until(lambda: age_of_sweep() > first)
        with private_database.transaction() as connection:
            connection.execute(sa.text("alter function sharequeue.swept_away(integer) rename to sweep"))
        wait_until(lambda: age_of_sweep() < 0)


def test_the_event_loop_makes_no_text(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats wait on it: a scrape is made in a thread, also without the database."""
    made: list[str] = []
    text = registry.Own.text

    def noted(own: registry.Own) -> str:
        made.append(threading.current_thread().name)
        return text(own)

    def fails(_: Reader) -> None:
        raise CoordinatorNotAvailable

    monkeypatch.setattr(registry.Own, "text", noted)
    assert client.get("/metrics").status_code == 200
    monkeypatch.setattr(Reader, "read", fails)
    assert "sharequeue_database_up 0.0" in client.get("/metrics").text
    assert made == ["sharequeue-scrape"] * 2
