"""A worker of a queue, as the page on consumers shows it: `queue_worker.py <config> <topic> <ledger> plain|awaited`.

It decodes a record, does its work, says what came of it, and commits once a poll. The ledger has a line for each
record that it is handed, and for each result of a commit.
"""

import asyncio
import json
import os
import signal
import sys
import time

from confluent_kafka import Message

from sharequeue import AcknowledgeType, DeserializingShareConsumer, ShareConsumer

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
config, topic, mode = json.loads(sys.argv[1]), sys.argv[2], sys.argv[4]
stopping: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
ledger = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(**what: object) -> None:
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(ledger, (json.dumps({"worker": os.getpid(), "at": at, **what}) + "\n").encode())


def decode(value: bytes | None, _: object) -> object:
    return json.loads(value or b"")


def handle(order: int) -> None:
    """The work: some orders fail always, some the first time."""
    time.sleep(0.003)
    if order % 17 == 0:
        raise ValueError(f"order {order} is wrong")


def outcome_of(message: Message) -> tuple[AcknowledgeType, BaseException | None]:
    if message.error() is not None:
        return RELEASE, None
    try:
        handle(message.value())  # type: ignore[arg-type]
    except ValueError as error:
        return REJECT, error
    if message.value() % 13 == 0 and message.delivery_count() == 1:  # type: ignore[operator]
        return RELEASE, None
    return ACCEPT, None


def handed(messages: list[Message], consumer: ShareConsumer) -> None:
    """Written down before anything else, with what is left of each lock."""
    for message, left in [(message, consumer.lock_remaining(message)) for message in messages]:
        place = [message.partition(), message.offset()]
        note(what="handed", record=place, count=message.delivery_count(), left=left)


def committed(results: dict, outcomes: dict) -> None:  # type: ignore[type-arg]
    for at, error in results.items():
        records = [[*record, int(kind)] for record, kind in outcomes.items() if record[0] == at.partition]
        note(what="committed", records=records, error=None if error is None else error.args[0].name())


def plain() -> None:
    with DeserializingShareConsumer({**config, "value.deserializer": decode}) as consumer:
        consumer.subscribe([topic])
        while not stopping:
            outcomes = {}
            messages = list(consumer.poll(0.2))
            handed(messages, consumer)
            for message in messages:
                kind, error = outcome_of(message)
                consumer.acknowledge(message, kind, error=error)
                outcomes[message.partition(), message.offset()] = kind
            committed(consumer.commit_sync(), outcomes)


async def awaited() -> None:
    with DeserializingShareConsumer({**config, "value.deserializer": decode}) as consumer:
        consumer.subscribe([topic])
        while not stopping:
            outcomes = {}
            messages = list(await asyncio.to_thread(consumer.poll, 0.1))
            handed(messages, consumer)
            for message in messages:
                kind, error = outcome_of(message)
                consumer.acknowledge(message, kind, error=error)
                outcomes[message.partition(), message.offset()] = kind
            committed(await asyncio.to_thread(consumer.commit_sync), outcomes)


if mode == "plain":
    plain()
else:
    asyncio.run(awaited())
note(what="ended")
