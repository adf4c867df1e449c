"""P10: `sharequeue.ShareConsumer`, compared with confluent-kafka's on the broker's own share groups.

Both run the same program: a poll, an ACCEPT of each record, `commit_async`. One process, one topic of four
partitions, default configs. Timed from the first record to the last acknowledged one, so that joining
the group does not count for either. The service runs meanwhile.

No goal: a message costs in Python what it costs. The figures are those of today, and may not become worse.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from functools import partial
from importlib import import_module

from benchmarks.harness import Table, case, in_turn, median, number, part, say, spread
from benchmarks.share_groups import broker_group
from benchmarks.stack import fill, stack
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs

OURS, THEIRS = "sharequeue", "confluent_kafka"


def consume(module: str, config: str, topic: str, records: str) -> None:
    """Run the program; print its seconds and its CPU seconds."""
    with import_module(module).ShareConsumer(json.loads(config)) as consumer:
        consumer.subscribe([topic])
        done, began, cpu = 0, 0.0, 0.0
        while done < int(records):
            messages = consumer.poll(1.0)
            if len(messages) and not done:
                began, cpu = time.perf_counter(), time.process_time()
            for message in messages:
                consumer.acknowledge(message)
            consumer.commit_async()
            done += len(messages)
        consumer.commit_sync()
        taken = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps(taken))


def consumed(settings: Settings, module: str, topic: str, records: int, cpu: list[float]) -> float:
    """Return the seconds of the program in a separate process, for a new group."""
    config = {
        "bootstrap.servers": settings.bootstrap_servers,
        "share.acknowledgement.mode": "explicit",
        "log_level": 3,
    }
    if module == OURS:
        config["group.id"] = f"bench-{uuid.uuid4().hex[:10]}"
        config["sharequeue.database.url"] = settings.database_url
        with Database.open(settings) as database:
            alter_group_configs(database, str(config["group.id"]), {"share.auto.offset.reset": "earliest"})
    else:
        config["group.id"] = broker_group(settings)
    with part("p10_share_consumer:consume", module, json.dumps(config), topic, records) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    taken, used = json.loads(output.splitlines()[-1])
    cpu.append(used)
    return float(taken)


@case("P10", "× confluent not below 0.25 with records of 100 bytes, 0.55 of 1,000", records=100_000, rounds=2)
def share_consumer(records: int = 1_000_000, rounds: int = 5) -> Iterator[Table]:
    """Compare our ShareConsumer with confluent-kafka's on the broker's share groups."""
    rows = []
    with stack(service=True) as settings:
        for size in (100, 1_000):
            topic = f"records-of-{size}"
            say(f"producing {records:,} records of {size} bytes")
            fill(settings, topic, records, size)
            cpu: dict[str, list[float]] = {THEIRS: [], OURS: []}
            sides = {
                module: partial(consumed, settings, module, topic, records, used)
                for module, used in cpu.items()
            }
            measured = in_turn(sides, rounds)
            rows += [
                (
                    f"{module}.ShareConsumer",
                    f"{size:,}",
                    number(median(figures)),
                    spread(figures),
                    f"{records / median(figures):,.0f}",
                    f"{median(cpu[module][1:]) * 1e6 / records:.2f}",
                    f"{median(measured[THEIRS]) / median(figures):.2f}",
                )
                for module, figures in measured.items()
            ]
    headings = ("side", "bytes", f"seconds, median of {rounds}", "range", "records/s", "CPU µs a record")
    yield Table((*headings, "× confluent"), rows, f"{records:,} records, each acknowledged")
