"""The age of the oldest record, by its timestamp in the topic."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.reading import first_records
from sharequeue.kafka.topics import Topics
from sharequeue.reports.history import Reports
from sharequeue.reports.read import read_report
from sharequeue.state import State
from tests import single
from tests.fixtures.logs import delete_before
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S, pass_time


@pytest.mark.usefixtures("standing_clock")
def test_the_oldest_record_has_the_age_of_its_timestamp(
    settings: Settings,
    private_database: Database,
    topics: Topics,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In reports and in `groups describe --state`, by the database's clock. Where a topic cannot be read, the age is
    that of the first report with the record; the next record counts where retention has removed the oldest."""
    topic, state = make_topic(2), State(private_database)
    now = state.now().timestamp()
    alter_group_configs(private_database, "g", {})
    alter_group_configs(private_database, "idle", {})
    info = topics.info(topic)
    producer = Producer(client_config(settings))
    for age in (500, 400):
        producer.produce(topic, b"x", partition=0, timestamp=int((now - age) * 1000))
    assert producer.flush(PATIENCE_S) == 0
    for name, topic_id, partition in ((topic, info.topic_id, 0), ("not-there", "id", 0)):
        at = SharePartition("g", name, partition)
        state.initialize(at, topic_id, 0, 1)
        single.observe(state, at, topic_id, 0, 2, 2)
    Reports(private_database).record("g")
    pass_time(private_database, 100)
    report = read_report(private_database, "g", settings)
    ages = {each.topic: each.age_seconds for each in report.oldest}
    assert ages == {topic: pytest.approx(600, abs=0.01), "not-there": 100}
    assert report.figures.oldest_age_seconds == ages[topic]

    delete_before(settings, topic, 1)
    report = read_report(private_database, "g", settings)
    assert {each.topic: each.age_seconds for each in report.oldest}[topic] == pytest.approx(500, abs=0.01)

    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    shown = CliRunner().invoke(command, ["groups", "describe", "--state", "--all-groups", "-o", "json"])
    rows = {row["group"]: row for row in json.loads(shown.stdout)}
    assert rows["g"]["oldest_age"] == pytest.approx(500, abs=0.01)
    assert (rows["g"]["lag"], rows["idle"]["lag"]) == (4, None)


def test_a_partition_that_does_not_exist_is_not_waited_for(settings: Settings, make_topic: MakeTopic) -> None:
    """The broker never reports it to a consumer that reads it; the others are read (the wait would be an hour)."""
    topic = make_topic(1)
    producer = Producer(client_config(settings))
    producer.produce(topic, b"x")
    assert producer.flush(PATIENCE_S) == 0
    found = first_records(settings, {(topic, 0): 0, (topic, 1): 0, ("not-there", 0): 0}, 3600.0)
    assert list(found) == [(topic, 0)]
    assert "not-there" not in Topics(settings).names()
