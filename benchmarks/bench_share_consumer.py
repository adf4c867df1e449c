"""P10: how fast is `sharequeue.ShareConsumer` beside confluent-kafka's on the broker's own share groups?

The same program with either: a poll, an ACCEPT of each record, `commit_async`. One process, one topic of four
partitions, every config as it comes. Timed from the first record to the last that is acknowledged, so that joining
the group costs nobody anything. The service runs meanwhile, as it must.

    .venv/bin/python benchmarks/bench_share_consumer.py [--records 1000000] [--rounds 5] [--bytes 100 1000]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import uuid
from functools import partial
from importlib import import_module
from typing import Any

from leased_rig import broker_group, fill, say, stack, versions
from rig import in_turn, median, report, spread

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.settings import Settings

OURS, THEIRS = "sharequeue", "confluent_kafka"


def consume(module: str, config: dict[str, Any], topic: str, records: int) -> tuple[float, float]:
    """What the program does; return its seconds and its seconds of CPU."""
    with import_module(module).ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        done, began, cpu = 0, 0.0, 0.0
        while done < records:
            messages = consumer.poll(1.0)
            if len(messages) and not done:
                began, cpu = time.perf_counter(), time.process_time()
            for message in messages:
                consumer.acknowledge(message)
            consumer.commit_async()
            done += len(messages)
        consumer.commit_sync()
        return time.perf_counter() - began, time.process_time() - cpu


def _run(settings: Settings, module: str, topic: str, records: int, cpu: list[float]) -> float:
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
    arguments = [sys.executable, __file__, "--consume", module, json.dumps(config), topic, str(records)]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    taken, used = json.loads(done.stdout.splitlines()[-1])
    cpu.append(used)
    say(f"{module}, {topic}: {taken:.2f} s, CPU {used:.2f} s")
    return float(taken)


def main() -> None:
    """Measure the sides in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000, help="records in each topic")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each side")
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1000], help="bytes of a record")
    parser.add_argument("--consume", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.consume:
        module, config, topic, records = given.consume
        print(json.dumps(consume(module, json.loads(config), topic, int(records))))
        return
    rows = []
    with stack(service=True) as settings:
        for size in given.bytes:
            topic = f"records-of-{size}"
            say(f"producing {given.records:,} records of {size} bytes")
            fill(settings, topic, given.records, size)
            cpu: dict[str, list[float]] = {THEIRS: [], OURS: []}
            sides = [
                partial(_run, settings, module, topic, given.records, used) for module, used in cpu.items()
            ]
            theirs, ours = in_turn(sides, given.rounds)
            for module, figures in ((THEIRS, theirs), (OURS, ours)):
                rows.append(
                    (
                        f"{module}.ShareConsumer",
                        f"{size:,}",
                        f"{median(figures):,.2f}",
                        spread(figures),
                        f"{given.records / median(figures):,.0f}",
                        f"{median(cpu[module][1:]) * 1e6 / given.records:.2f}",
                        f"{median(theirs) / median(figures):.2f}",
                    )
                )
        report(
            settings.database_url,
            f"P10: {given.records:,} records, each acknowledged, median of {given.rounds} (goal: 1 ×)",
            ("side", "bytes", "seconds", "range", "records/s", "CPU µs a record", "× confluent"),
            rows,
        )
    print(versions())


if __name__ == "__main__":
    main()
