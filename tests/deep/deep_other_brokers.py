"""Brokers before the embedded one: from the oldest that was tried on, without share groups or with them off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import sqlalchemy as sa
from confluent_kafka import KafkaException

from sharequeue import ShareConsumer
from sharequeue.database import Database
from sharequeue.domain.errors import InconsistentClusterId
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.local.home import write_json
from sharequeue.service.coordinator import Coordinator
from tests.deep.main_path import invoke, walk, walk_to_topic
from tests.fixtures.stack import Copies, _made
from tests.integration.consumer.share_group import poll_some, wait_until, work_on
from tests.servers.own_brokers import OwnBroker, jars_of, own_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSIONS = ("3.3.2", "3.5.2", "3.7.2", "3.9.1", "4.0.2", "4.1.2", "4.2.1", "4.3.1")


@pytest.fixture(scope="module", params=VERSIONS)
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnBroker]:
    """Give a broker of an earlier version."""
    folder = tmp_path_factory.mktemp(f"kafka-{request.param}")
    with own_broker(folder, jars_of(request.param)) as broker:
        yield broker


@pytest.fixture
def there(
    older: OwnBroker,
    settings: Settings,
    private_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Settings:
    """Give settings that lead to it, with a state of its own, as the environment has them."""
    return lead_to(older.address(), settings, private_database, monkeypatch, tmp_path)


def lead_to(
    address: str, settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch, output: Path
) -> Settings:
    """Set the environment, and return what it says."""
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", database.engine.url.render_as_string(hide_password=False))
    monkeypatch.setenv("SHAREQUEUE_BOOTSTRAP_SERVERS", address)
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(output / "output"))
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    return Settings.load()


def test_the_main_path(there: Settings, private_database: Database, spark: SparkSession) -> None:
    """Job, dead letters, redrive, consumer and resets do on a broker without share groups what they do on 4.4."""
    walk(there, private_database, spark)


def test_results_to_a_topic(there: Settings, private_database: Database, spark: SparkSession) -> None:
    """A topic gets each accepted row once, also after a run that ended before it had sent them."""
    walk_to_topic(there, private_database, spark)


@pytest.mark.parametrize("older", VERSIONS[-1:], indirect=True)
def test_two_clusters_side_by_side(
    older: OwnBroker,
    settings: Settings,
    private_database: Database,
    copies: Copies,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A database each, from one machine: by a folder of settings each, or by flags; each refuses the other's."""
    topic = f"topic-{uuid4().hex[:8]}"
    engine = sa.create_engine(settings.database_url, isolation_level="AUTOCOMMIT")
    with _made(engine, f"template {copies.template}") as second:
        here = placed(tmp_path / "here", private_database, settings.bootstrap_servers)
        there = placed(tmp_path / "there", second, older.address())
        group = f"group-{uuid4().hex[:8]}"
        with work_on(here, private_database, group) as ours, work_on(there, second, group) as theirs:
            for records, work in ((3, ours), (5, theirs)):
                with Topics(work.settings) as topics:
                    topics.create(topic, 1)
                work.produce(topic, records)
            for records, work in ((3, ours), (5, theirs)):
                with ShareConsumer(
                    {"group.id": group, "sharequeue.home": str(work.settings.home)}
                ) as consumer:
                    consumer.subscribe([topic])
                    assert len(poll_some(consumer, records)) == records
                    consumer.commit_sync()
                    wait_until(work.done, 20)
        assert [row.spso for row in ours.status() + theirs.status()] == [3, 5]
        reset = ("offsets", "reset", "--group", group, "--all-topics", "--to-earliest", "--execute", "--yes")
        for home, moved in ((there, theirs), (here, ours)):
            assert invoke(*reset, "--home", str(home.home)).exit_code == 0
            assert [row.spso for row in moved.status()] == [0]
        # A folder leads to one cluster, a flag to the other: nothing is done.
        mixed = invoke(*reset, "--home", str(here.home), "--bootstrap-server", there.bootstrap_servers)
        assert isinstance(mixed.exception, InconsistentClusterId), mixed.output
        with Topics(there) as broker, pytest.raises(InconsistentClusterId):
            Coordinator(private_database, broker).watch()
        wrong = {"group.id": group, "sharequeue.home": str(here.home)}
        with (
            work_on(here, private_database, group),
            ShareConsumer({**wrong, "bootstrap.servers": there.bootstrap_servers}) as consumer,
        ):
            consumer.subscribe([topic])
            with pytest.raises(KafkaException, match="but the state to cluster"):
                poll_some(consumer)
    engine.dispose()


def placed(home: Path, database: Database, address: str) -> Settings:
    """Settings in a folder, as `sharequeue up` or a person writes them."""
    home.mkdir()
    url = database.engine.url.render_as_string(hide_password=False)
    write_json(home / "stack.json", {"database_url": url, "bootstrap_servers": address})
    return Settings.load(home)
