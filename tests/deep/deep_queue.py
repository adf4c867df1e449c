"""A queue whose workers are killed, stopped and suspended: every record ends once, and every count is right."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from sharequeue import AcknowledgeType, Database, Settings
from sharequeue.kafka.clients import client_config
from tests.fixtures.stack import REPOSITORY, MakeTopic
from tests.integration.consumer.share_group import Work, wait_until, work_on

RECORDS, PARTITIONS = 3000, 2
LOCK_S = 3.0
LIMIT = 6
ACCEPT, REJECT = int(AcknowledgeType.ACCEPT), int(AcknowledgeType.REJECT)


class Workers:
    """Processes of ``queue_worker.py``, and what they have written down."""

    def __init__(self, work: Work, topic: str, ledger: Path) -> None:
        self._work, self._topic, self._ledger = work, topic, ledger
        self.killed: set[int] = set()

    def start(self, mode: str) -> psutil.Process:
        """One more, which has been handed something."""
        config = self._work.config(share_acknowledgement_mode="explicit", max_poll_records=20)
        program = Path(__file__).parent / "queue_worker.py"
        arguments = [sys.executable, str(program), json.dumps(config), self._topic, str(self._ledger), mode]
        process = subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
        wait_until(lambda: self.has_polled(process.pid) or process.poll() is not None, 60)
        return psutil.Process(process.pid)

    def has_polled(self, pid: int) -> bool:
        """Whether it has been handed something."""
        return any(line["worker"] == pid for line in self.lines())

    def lines(self) -> list[dict[str, Any]]:
        """The ledger."""
        if not self._ledger.exists():
            return []
        return [json.loads(line) for line in self._ledger.read_text().splitlines()]


@pytest.mark.slow
def test_every_record_ends_once(
    settings: Settings, database: Database, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """One worker is killed, one is suspended past its lock, one is stopped, and one awaits its polls.

    Nothing is lost; nothing is handed out after its lock has lapsed, nor while somebody else has it; each delivery
    counts once; and the group's figures are those of the workers' commits.
    """
    seed = int(os.environ.get("SHAREQUEUE_TEST_SEED") or time.time())
    print(f"SHAREQUEUE_TEST_SEED={seed}")
    draw = random.Random(seed)  # noqa: S311
    topic = make_topic(PARTITIONS)
    producer = Producer(client_config(settings, enable_idempotence=True))  # in order
    undecodable = set(draw.sample(range(RECORDS), 5))
    for number in range(RECORDS):
        value = b"\xff" if number in undecodable else b"%d" % number
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    with work_on(
        settings,
        database,
        group,
        share_record_lock_duration_ms=int(1000 * LOCK_S),
        share_delivery_count_limit=LIMIT,
    ) as work:
        workers = Workers(work, topic, tmp_path / "ledger")
        first, suspended = workers.start("plain"), workers.start("plain")
        time.sleep(draw.uniform(0.1, 0.6))
        suspended.suspend()
        workers.killed.add(first.pid)
        first.kill()
        first.wait()
        stopped = workers.start("plain")
        time.sleep(draw.uniform(0.1, 0.6))
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(30) == 0
        awaited = workers.start("awaited")
        time.sleep(LOCK_S + draw.uniform(0.1, 0.6))
        suspended.resume()
        wait_until(work.done, 120, work.status)
        for each in (suspended, awaited):
            each.send_signal(signal.SIGTERM)
            assert each.wait(30) == 0
        check(work, workers, undecodable)


def check(work: Work, workers: Workers, undecodable: set[int]) -> None:
    """Compare the ledger with the group's figures."""
    lines = workers.lines()
    deliveries: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    ends: dict[tuple[int, int], list[tuple[float, int, int]]] = defaultdict(list)
    late: dict[tuple[int, int], list[int]] = defaultdict(list)
    for line in lines:
        if line["what"] == "handed":
            assert line["left"] > 0, line
            deliveries[tuple(line["record"])].append(line)
        elif line["what"] == "committed" and line["error"] is None:
            for partition, offset, kind in line["records"]:
                record, worker = (partition, offset), line["worker"]
                *_, held = (each for each in deliveries[record] if each["worker"] == worker)
                if line["at"] < held["at"] + held["left"]:
                    ends[record].append((line["at"], kind, worker))
                else:
                    # It changed nothing where others have finished everything up to there.
                    late[record].append(kind)
    everything = {(number % PARTITIONS, number // PARTITIONS) for number in range(RECORDS)}
    assert set(deliveries) == everything, "nothing is lost"
    unsure = 0
    for record, handed in sorted(deliveries.items()):
        final = [kind for _, kind, _ in ends[record] if kind in (ACCEPT, REJECT)]
        number = record[1] * PARTITIONS + record[0]
        if number in undecodable:
            assert not final
            assert len(handed) <= LIMIT
            assert handed[-1]["count"] == LIMIT
        elif not final:
            # Its worker was killed between the commit and the ledger, or was suspended there.
            assert late[record] or handed[-1]["worker"] in workers.killed, (record, handed)
            unsure += 1
        else:
            assert len(final) == 1, (record, ends[record])
        counts = [line["count"] for line in handed]
        assert counts == sorted(set(counts)), (record, counts)
        if number in undecodable or number % 13 == 0:
            continue  # what a worker released just before its end is not in the ledger
        for before, after in pairwise(handed):
            given_back = [
                at for at, _, worker in ends[record] if worker == before["worker"] and at >= before["at"]
            ]
            free = min([before["at"] + before["left"], *given_back])
            stopped_meanwhile = any(
                line["what"] == "ended" and line["worker"] == before["worker"] and line["at"] <= after["at"]
                for line in lines
            )
            # The commit is in the ledger a moment after it is done.
            assert after["at"] >= free - 0.5 or stopped_meanwhile, (record, before, after)
    rows = work.status()
    kinds = [kind for record in ends.values() for _, kind, _ in record]
    accepted, rejected = kinds.count(ACCEPT), kinds.count(REJECT)
    assert accepted <= sum(row.accepted for row in rows) <= accepted + unsure
    assert rejected <= sum(row.rejected for row in rows) <= rejected + unsure
    assert sum(row.exhausted for row in rows) == len(undecodable)
    assert sum(row.accepted + row.rejected + row.exhausted for row in rows) == RECORDS
