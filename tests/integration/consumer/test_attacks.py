"""What is lost, and what comes twice, when processes and servers go away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import Random

import psutil
import pytest
from confluent_kafka import Producer

from sharequeue import Database, Settings
from sharequeue.consumer.reader import LeaseReader
from sharequeue.domain.offsets import OffsetSet
from sharequeue.kafka.clients import client_config
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import (
    Work,
    let_locks_lapse,
    poll_some,
    seen,
    wait_until,
    work_on,
)
from tests.servers.cutting_proxy import CuttingProxy
from tests.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def work(settings: Settings, database: Database, group: str) -> Iterator[Work]:
    """Give a group with a coordinator at work, in the shared database."""
    with work_on(settings, database, group) as work:
        yield work


@pytest.fixture
def timed(settings: Settings, private_database: Database, group: str) -> Iterator[Work]:
    """Give the same in a database whose clock the test moves: a lock lapses then, however slow the machine is."""
    with work_on(settings, private_database, group) as work:
        yield work


def _holder(work: Work, topic: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that has polled and waits."""
    process = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).parent / "held_by.py"),
            json.dumps(work.config()),
            topic,
            *arguments,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == [0, 1, 2]
    return process


def test_kill_9(timed: Work, make_topic: MakeTopic) -> None:
    """What a killed process had in hand comes to another one when its lock lapses, counted."""
    topic = make_topic()
    timed.produce(topic, 3)
    _holder(timed, topic).kill()
    let_locks_lapse(timed)
    with timed.consumer(topic) as consumer:
        assert seen(poll_some(consumer, 3)) == [(offset, 2) for offset in range(3)]


def test_a_process_stopped_over_its_lock(timed: Work, make_topic: MakeTopic) -> None:
    """Others get its records meanwhile; when it goes on, its commit changes nothing and says so."""
    topic = make_topic()
    timed.produce(topic, 3)
    process = _holder(timed, topic)
    psutil.Process(process.pid).suspend()
    let_locks_lapse(timed)
    with timed.consumer(topic) as consumer:
        assert seen(poll_some(consumer, 3)) == [(offset, 2) for offset in range(3)]
        psutil.Process(process.pid).resume()
        out, _ = process.communicate("\n", timeout=PATIENCE_S)
        assert list(consumer.commit_sync().values()) == [None]
    assert json.loads(out) == ["INVALID_RECORD_STATE"]
    wait_until(timed.done)


def test_a_refused_implicit_acknowledgement_is_logged(
    timed: Work, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that is slower than its lock gets a warning: nothing else reports the refusal in implicit mode."""
    topic = make_topic()
    timed.produce(topic, 1)
    with timed.consumer(topic) as slow:
        assert seen(poll_some(slow)) == [(0, 1)]
        let_locks_lapse(timed)
        with timed.consumer(topic) as other:
            assert seen(poll_some(other)) == [(0, 2)]
            wait_until(lambda: not slow.poll(0.1) and "not accepted" in caplog.text)
            assert list(other.commit_sync().values()) == [None]
    assert f"1 record of {topic}-0 not accepted" in caplog.text


def test_a_topic_that_does_not_exist_is_logged(
    work: Work, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Empty polls have a reason: no share-partition is assigned."""
    monkeypatch.setattr("sharequeue.consumer.share_consumer.UNASSIGNED_S", 0.2)
    with work.consumer(topic) as consumer:
        wait_until(lambda: not consumer.poll(0.1) and f"no share-partition of {topic}" in caplog.text)
        for _ in range(3):
            assert not consumer.poll(0.1)
    assert caplog.text.count(f"no share-partition of {topic}") == 1


def test_sigterm_is_a_contract(work: Work, make_topic: MakeTopic) -> None:
    """What is in hand is finished and committed, the rest is given back uncounted, the process ends by itself."""
    topic = make_topic()
    work.produce(topic, 3)
    process = _holder(work, topic, "finish")
    work.produce(topic, 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    [row] = work.status()
    assert (row.accepted, row.acquired) == (3, 0)
    with work.consumer(topic) as consumer:
        assert seen(poll_some(consumer, 2)) == [(3, 1), (4, 1)]


def test_the_database_away_for_a_moment(work: Work, make_topic: MakeTopic) -> None:
    """Connections that are cut in the middle of replies: each record is still processed, and none is lost."""
    topic = make_topic()
    work.produce(topic, 400)
    url = work.database.engine.url
    with CuttingProxy(str(url.host), int(url.port or 5432)) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        found: Counter[int | None] = Counter()
        with work.consumer(topic, max_poll_records=20, sharequeue_database_url=through) as consumer:
            markers = cycle(("acquire_many", "acknowledge_many"))
            after = cycle(range(7))
            deadline = time.monotonic() + PATIENCE_S
            while not work.done():
                assert time.monotonic() < deadline, work.status()
                if not proxy.armed:
                    proxy.arm(next(markers), next(after))
                found.update(message.offset() for message in consumer.poll(0.2))
            consumer.commit_sync()
        assert set(found) == set(range(400))
        assert proxy.cuts > 1
    wait_until(work.done, otherwise=work.status)


def test_only_missing_records_are_gaps(settings: Settings, make_topic: MakeTopic) -> None:
    """Any leased offsets, in any order: each record that is there comes, and only what is not there is a gap."""
    topic = make_topic()
    random = Random(7)  # noqa: S311
    producer = Producer(client_config(settings, transactional_id=f"tx-{topic}"))
    producer.init_transactions(PATIENCE_S)
    there: set[int] = set()
    end = 0
    for _ in range(60):
        count, aborted = random.randint(1, 60), random.random() < 0.3
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(topic, value=b"x" * random.randint(1, 400))
        producer.flush()
        if aborted:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            there.update(range(end, end + count))
        end += count + 1
    reader = LeaseReader(settings, {}, "read_committed", 1 << 20)
    try:
        for _ in range(20):
            ranges = [
                (first, min(end, first + random.randint(1, 90))) for first in random.sample(range(end), 4)
            ]
            wanted = OffsetSet.of(*ranges)
            got: set[int | None] = set()
            while wanted:
                part = reader.read((topic, 0), wanted, 5000, 10.0, lambda: False)
                assert part.error is None
                assert part.passed
                got.update(message.offset() for message in part.messages)
                assert got >= there & set(part.passed.iter_offsets())
                wanted -= part.passed
            assert got == there & set(OffsetSet.of(*ranges).iter_offsets())
    finally:
        reader.close()
