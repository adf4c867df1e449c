"""The files for Prometheus, Grafana and KEDA: what they name is in a scrape, alerts fire, and each has a runbook."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import sqlalchemy as sa
import yaml
from starlette.testclient import TestClient

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import RoleNames, Settings
from sharequeue.domain.values import AcknowledgeType, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.service import create_app
from sharequeue.service.metrics.figures import Reader
from sharequeue.state import State
from sharequeue.state.replicas import hear_replica
from tests import single
from tests.integration.service import promql
from tests.waiting import pass_time
from tools.pages import ROOT

FOLDER = ROOT / "docker" / "monitoring"
OF_PROMETHEUS: Mapping[str, set[str]] = {"up": {"job"}}
"""What Prometheus adds by itself."""


@cache
def alerts() -> Mapping[str, Mapping[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def panels() -> dict[str, list[str]]:
    """Return the queries of the dashboard by panel, with its variables filled in."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    return {
        panel["title"]: [
            each["expr"].replace("$__rate_interval", "1m").replace("$group", ".*")
            for each in panel["targets"]
        ]
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    }


@pytest.fixture
def here(settings: Settings, private_database: Database) -> Settings:
    """Give settings that lead to a database of this test alone."""
    return settings.replace(database_url=private_database.engine.url.render_as_string(hide_password=False))


HEARTBEAT = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}


class Scrapes(NamedTuple):
    """What was scraped; what Prometheus adds is made up."""

    before: promql.Samples
    """All is well."""
    after: promql.Samples
    """Everything goes wrong but the database."""
    away: promql.Samples
    """The same, and the database does not answer."""


def scrapes(here: Settings, database: Database) -> Scrapes:
    """Return the scrapes of a service around which everything goes wrong."""
    now = [0.0]
    state = State(database)
    configs: dict[str, str | int] = {
        "errors.deadletterqueue.topic.name": "dlq.g",
        "share.partition.max.record.locks": 100_000,
    }
    alter_group_configs(database, "g", configs)
    for partition in range(2):
        at = SharePartition("g", "t", partition)
        state.initialize(at, "id", 0, 2)
        single.observe(state, at, "id", 0, 100_000, 100_000)
    first, second = SharePartition("g", "t", 0), SharePartition("g", "t", 1)
    hear_replica(database, "other", writes_letters=True)
    database.rows(sa.text("select sharequeue.note_service_work('other', 1, 1, 1, 1) as noted"))
    app = create_app(here, coordinate=False)
    service = app.state.service
    service.metrics._reader = Reader(database, monotonic=lambda: now[0])
    with TestClient(app, base_url="http://localhost") as client:
        assert client.post("/v1/share-group-heartbeat", json=HEARTBEAT).json()["error_code"] == 0
        service.faults.note("broker", None)
        before = client.get("/metrics").text

        lease = single.acquire(state, first, "m", None, 3_000)
        assert lease is not None
        single.acknowledge(state, lease, {AcknowledgeType.REJECT: OffsetSet.parse("{[0,1500)}")})
        accept_and_hold(state, second)
        letters = state.dead_letters.open(first, 1_500)
        assert letters is not None
        state.dead_letters.close(letters)
        pass_time(database, 60)
        assert state.sweep().records == 1_500
        again = single.acquire(state, first, "m", None, 1)
        assert again is not None
        single.acknowledge(state, again, {AcknowledgeType.REJECT: again.offsets})
        state.dead_letters.hold(first, "the topic is not there")
        single.observe(state, second, "id", 50_000, 100_000, 100_000)
        # Nothing settles it when its lock lapses.
        single.acquire(state, second, "gone", None, 10)
        pass_time(database, 2 * 86_400)
        state.administration.pause("g", "the ledger is down")
        epochs = "update sharequeue.share_groups set group_epoch = group_epoch + 200 returning group_epoch"
        database.rows(sa.text(epochs))
        service.coordinator._dead_letter_turns.failed["g"] += 1
        service.coordinator.faults["watch"] = "Kafka does not answer"
        service.coordinator.groups.note("expiry", {"g": "locked"})
        service.faults.look()
        service.faults._monotonic = lambda: time.monotonic() + 1_000
        service.metrics.own.heartbeats.labels("15").inc()
        service.metrics.own.requests.labels("share-group-heartbeat").observe(3)
        now[0] += 6_000
        after = client.get("/metrics").text
    nowhere = here.replace(database_url="postgresql+psycopg2://nobody@127.0.0.1:1/none")
    with TestClient(create_app(nowhere, coordinate=False), base_url="http://localhost") as client:
        nothing = client.get("/metrics").text
    gone = '# TYPE up gauge\nup{job="sharequeue",instance="service:28080"} %d\n'
    down = "".join(line for line in nothing.splitlines(keepends=True) if "sharequeue_database_up" in line)
    return Scrapes(
        promql.samples(before, gone % 1),
        promql.samples(after, gone % 0),
        promql.samples(after, down, gone % 1),
    )


def accept_and_hold(state: State, at: SharePartition) -> None:
    """Accept records whose results cannot be written."""
    lease = single.acquire(state, at, "m", None, 10)
    assert lease is not None
    outputs = [LeaseOutput("results", "sink:pending:/data/1", 10)]
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=outputs)
    transfer = state.outputs.begin_transfer(at.group_id, "results", timedelta(seconds=30))
    assert transfer is not None
    state.outputs.hold_transfer(at.group_id, "results", transfer.number, "the topic is not there")


@pytest.fixture
def told(here: Settings, private_database: Database) -> Scrapes:
    """Give the scrapes."""
    return scrapes(here, private_database)


OF_THE_DATABASE = {"SharequeueDatabaseDown"}
LEFT_TO_IT = {"SharequeueKafkaUnreachable", "SharequeueFaultStays"}
"""What has its own cause only while the database answers: the service cannot do any of its work without it."""


def test_every_metric_and_label_is_in_a_scrape_and_every_alert_fires(told: Scrapes) -> None:
    """No alert and no panel asks for what a scrape has not. No alert fires when all is well, each in its fault. One
    cause has one alert: without the database, nothing is said of Kafka."""
    before, after, away = told
    queries = {f"alert {name}": [rule["expr"]] for name, rule in alerts().items()} | panels()
    unknown = []
    for where, each in ((where, each) for where, texts in queries.items() for each in texts):
        for name, labels in promql.selectors(each):
            known = OF_PROMETHEUS.get(name) or {
                label for series in after.get(name, {}) for label, _ in series
            }
            if name not in after or labels - known:
                unknown.append(f"{where}: {name} {sorted(labels - known)}")
    assert unknown == []
    assert _firing(before, before) == set()
    assert _firing(before, after) == set(alerts()) - OF_THE_DATABASE
    assert _firing(before, away) == set(alerts()) - LEFT_TO_IT - {"SharequeueServiceDown"}
    assert _firing(before, {}) == {"SharequeueServiceDown"}


def _firing(before: promql.Samples, now: promql.Samples) -> set[str]:
    return {name for name, rule in alerts().items() if promql.evaluated(rule["expr"], before, now)}


def test_each_alert_has_a_runbook() -> None:
    """`runbook_url` leads to a section of its own, and every section belongs to an alert."""
    page = ROOT / "docs/howto/runbooks.md"
    sections = re.findall(r"^## (Sharequeue\w+)$", page.read_text(), re.MULTILINE)
    assert sections == list(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"] == f"docs/howto/runbooks.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert named <= {label for _, labels in promql.selectors(rule["expr"]) for label in labels}


def test_the_query_of_keda(here: Settings, private_database: Database) -> None:
    """Under the role that the file names it returns one number: what a run would find, 0 while the group is
    paused."""
    resources = list(yaml.safe_load_all((ROOT / "docker/keda.yaml").read_text()))
    scaled = next(each for each in resources if each["kind"] == "ScaledJob")
    (trigger,) = scaled["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert RoleNames().reader in (ROOT / "docker/keda.yaml").read_text()
    names = RoleNames(*(f"keda {purpose} {uuid4().hex[:8]}" for purpose in RoleNames()._fields))
    migrate(private_database, roles=names)
    state, at = State(private_database), SharePartition("flight-delays", "flights", 0)

    def asked() -> list[Any]:
        with private_database.transaction() as connection:
            connection.exec_driver_sql(f'set local role "{names.reader}"')
            return list(connection.exec_driver_sql(query).scalars())

    assert asked() == [0]
    alter_group_configs(private_database, at.group_id, {"share.partition.max.record.locks": 1_000_000})
    state.initialize(at, "id", 0, 2)
    single.observe(state, at, "id", 0, 250_000, 250_000)
    assert asked() == [250_000]
    single.acquire(state, at, "m", None, 50_000)
    assert asked() == [200_000]
    state.administration.pause(at.group_id, "the ledger is down")
    assert asked() == [0]


def test_prometheus_waits_longer_than_a_scrape_takes() -> None:
    """The example's time-out is longer than the service waits for its database, and it reads the alerts."""
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert config["rule_files"] == ["alerts.yaml"]
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "sharequeue"
    assert int(job["scrape_timeout"].removesuffix("s")) > 4
