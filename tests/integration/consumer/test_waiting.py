"""How a consumer that waits learns of records, directly and behind a pooler."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from psycopg2 import sql

from sharequeue import AcknowledgeType, Database, Settings, SharePartition, State
from sharequeue.consumer import fetcher
from sharequeue.state.listening import channel_of
from tests import single
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import Work, poll_some, seen, wait_until, work_on
from tests.servers.transaction_pooler import TransactionPooler
from tests.waiting import PATIENCE_S

RELEASE = AcknowledgeType.RELEASE


@pytest.fixture
def work(settings: Settings, private_database: Database, group: str) -> Iterator[Work]:
    """Give a group with a coordinator at work, in a database whose notifications are of this test alone."""
    with work_on(settings, private_database, group) as work:
        yield work


def test_a_waiting_consumer_is_notified(
    work: Work, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of records that another one releases, at once or after their time, without asking meanwhile."""
    topic = make_topic()
    work.produce(topic, 2)
    with work.consumer(topic, explicit=True) as holder, work.consumer(topic) as waiting:
        messages = poll_some(holder, 2)
        wait_until(lambda: waiting._listener.active)
        waiting._member.membership._wake.set()
        wait_until(lambda: waiting.metrics()["assigned-partitions"] > 0)
        waiting.poll(0.5)
        # By itself it would ask in ten minutes.
        monkeypatch.setattr(fetcher, "NOTIFIED_S", 600.0)
        waiting.poll(0.5)
        found: list[list[tuple[int, int]]] = []

        def wait() -> None:
            while sum(map(len, found)) < 2:
                found.append(seen(list(waiting.poll(PATIENCE_S))))

        thread = threading.Thread(target=wait)
        thread.start()
        holder.acknowledge(messages[0], RELEASE)
        holder.acknowledge(messages[1], RELEASE, delay=0.5)
        holder.commit_sync()
        thread.join(PATIENCE_S)
        assert found == [[(0, 2)], [(1, 2)]]


def test_behind_a_pooler_it_looks_itself(work: Work, make_topic: MakeTopic) -> None:
    """No notification arrives there, which the consumer finds out; what is released still comes."""
    topic = make_topic()
    work.produce(topic, 1)
    pooler = TransactionPooler(work.database.engine.url, servers=4)
    try:
        url = pooler.url.render_as_string(hide_password=False)
        with work.consumer(topic, sharequeue_database_url=url) as waiting:
            assert seen(poll_some(waiting)) == [(0, 1)]
            waiting.commit_sync()
            state, at = State(work.database), SharePartition(work.group, topic, 0)
            work.produce(topic, 1)
            wait_until(lambda: work.status()[0].log_end == 2)
            lease = single.acquire(state, at, "another", None, 1)
            if lease is not None:
                threading.Timer(0.3, lambda: single.release(state, lease)).start()
            assert poll_some(waiting)[0].offset() == 1
            assert not waiting._listener.active
    finally:
        pooler.close()


def test_what_only_accepts_notifies_nobody(private_database: Database, at: SharePartition) -> None:
    """A commit with a notification waits for the one before it: acquiring and accepting sends none."""
    pooled = private_database.engine.raw_connection()
    connection = pooled.driver_connection
    pooled.detach()
    assert connection is not None
    try:
        connection.autocommit = True
        connection.notifies = []
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("listen {}").format(sql.Identifier(channel_of(at.group_id))))
            state = State(private_database)
            single.observe(state, at, "id", 0, 2000, 2000)
            cursor.execute("select 1")
            assert len(connection.notifies) == 1
            lease = single.acquire(state, at, "m", None, 500, redelivery="kafka")
            assert lease is not None
            single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
            assert single.acquire(state, at, "m", None, 500, redelivery="kafka") is not None
            cursor.execute("select 1")
            assert len(connection.notifies) == 1
    finally:
        connection.close()
