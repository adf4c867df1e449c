"""Reads of a topic by the broker's own share groups: with processes of confluent-kafka, or with Kafka's Java client.

A group begins at the first offset; no other config is changed. Timed from the first record to the last acknowledged
one: joining the group does not count for these peers, while for the leased side everything but Spark's start counts.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from confluent_kafka import ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config

JAVA_PEER = Path(__file__).parent / "ShareConsumers.java"
Work = Callable[[Any], None]
"""A process's handler for the messages of a poll; it is called with an empty list at the end."""


def broker_group(settings: Settings) -> str:
    """Create a share group of the broker that begins at the first offset."""
    group = f"broker-{uuid.uuid4().hex[:10]}"
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    client = AdminClient(client_config(settings, log_level=3))
    client.incremental_alter_configs([resource])[resource].result(30)
    return group


def confluent_seconds(
    settings: Settings,
    topic: str,
    records: int,
    processes: int,
    work: Work | None = None,
    explicit: bool = False,
) -> float:
    """Return the seconds that this number of processes with confluent-kafka's ShareConsumer take together."""
    context = get_context("spawn")
    done, reported = context.Value("q", 0), context.Queue()
    config = client_config(settings, group_id=broker_group(settings), log_level=3)
    config["share.acknowledgement.mode"] = "explicit" if explicit else "implicit"
    workers = [
        context.Process(target=_consume, args=(config, topic, records, done, reported, work, explicit))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    spans = [reported.get(timeout=1800) for _ in workers]
    for worker in workers:
        worker.join()
    assert done.value >= records, f"{done.value} of {records} records"
    begun = [span for span in spans if span is not None]
    return float(max(end for _, end in begun) - min(begin for begin, _ in begun))


def _consume(
    config: dict[str, Any],
    topic: str,
    records: int,
    done: Any,
    reported: Any,
    work: Work | None,
    explicit: bool,
) -> None:
    consumer = ShareConsumer(config)
    consumer.subscribe([topic])
    begun = ended = None
    while done.value < records:
        messages = [message for message in consumer.poll(0.5) or [] if message.error() is None]
        if not messages:
            continue
        begun = begun or time.time()
        if work is not None:
            work(messages)
        if explicit:
            for message in messages:
                consumer.acknowledge(message)
        consumer.commit_async()
        ended = time.time()
        with done.get_lock():
            done.value += len(messages)
    if work is not None:
        work([])
        ended = time.time()
    consumer.commit_sync()
    consumer.close()
    reported.put(None if begun is None else (begun, ended))


def java_seconds(settings: Settings, topic: str, records: int, consumers: int) -> float:
    """Return the same for Kafka's Java share consumers, threads of one process."""
    command = ["java", "-Xmx1g", "-cp", str(settings.jars / "broker" / "*"), str(JAVA_PEER)]
    command += [settings.bootstrap_servers, broker_group(settings), topic, str(records), str(consumers)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"the Java share consumers failed: {ran.stderr[-2000:]}")
    return float(ran.stdout.split()[-1])


def java_runs_sources() -> bool:
    """Return whether this Java can run a source file, which needs a JDK."""
    modules = subprocess.run(["java", "--list-modules"], capture_output=True, text=True, check=False)
    return "jdk.compiler@" in modules.stdout
