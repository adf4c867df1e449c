"""The way by which a consumer stays a member."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sharequeue import Database, Settings, ShareConsumer
from sharequeue.domain.settings import ServiceAddress
from sharequeue.groups import transports
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import Work, poll_some


def test_through_the_service(
    settings: Settings, database: Database, service: str, make_topic: MakeTopic, group: str
) -> None:
    """Where its address is given: join, assignment, records, leave."""
    topic = make_topic()
    work = Work(settings, database, group)
    work.configure(share_auto_offset_reset="earliest")
    work.produce(topic, 3)
    with work.consumer(topic, sharequeue_service_url=service) as consumer:
        assert len(poll_some(consumer, 3)) == 3
        consumer.commit_sync()
    assert work.status()[0].accepted == 3


def test_a_worker_s_login_goes_through_the_service(
    settings: Settings, private_database: Database, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not keep groups: its heartbeats go to the service, and without one the poll says what is missing."""
    login = f"worker_{uuid.uuid4().hex[:8]}"
    with private_database.transaction() as connection:
        connection.exec_driver_sql(f"create role {login} login password 'secret'")
        connection.exec_driver_sql(f"grant usage on schema sharequeue to {login}")
    try:
        url = private_database.engine.url.set(username=login, password="secret")
        worker = Database(url.render_as_string(hide_password=False))
        asked: list[str] = []

        def to_service(service: ServiceAddress) -> Any:
            asked.append(service.url)
            return lambda request, _: heartbeat(private_database, request)

        monkeypatch.setattr(transports, "ServiceTransport", to_service)
        beat = transports.DatabaseTransport(worker, settings.replace(service_url="http://service"))
        request = HeartbeatRequest(group, "m", 0, subscribed_topic_names=("t",))
        assert [beat(request).error_code for _ in range(2)] == [0, 0]
        assert asked == ["http://service"]
        config = {
            "group.id": group,
            "bootstrap.servers": settings.bootstrap_servers,
            "sharequeue.home": "/nowhere",
            "sharequeue.database.url": worker.engine.url.render_as_string(hide_password=False),
        }
        with ShareConsumer(config) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(KafkaException, match="SHAREQUEUE_SERVICE_URL") as raised:
                consumer.poll()
        assert raised.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        worker.close()
    finally:
        with private_database.transaction() as connection:
            connection.exec_driver_sql(f"drop owned by {login}; drop role {login}")
