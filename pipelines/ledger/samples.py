"""Sample entries: `python -m pipelines.ledger.samples 1000` creates the table and the topics if they are missing, and
adds 1,000 payments with their refunds.
"""

from __future__ import annotations

import json
import sys

import sqlalchemy as sa
from confluent_kafka import Producer

from pipelines.ledger.pipeline import PAYMENTS, REFUNDS, TABLE
from sharequeue import Database, Settings
from sharequeue.deadletters.topic import create_dead_letter_topic
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics

DEAD_LETTER_TOPIC = "dlq.ledger"
REFUND_EVERY, FOREIGN_EVERY = 10, 50

_TABLE = f"""
create schema if not exists accounting;
create table if not exists {TABLE} (
    topic text not null, partition integer not null, "offset" bigint not null,
    booked_at timestamptz not null, account text not null, amount numeric(12, 2) not null,
    constraint ledger_pkey primary key (topic, partition, "offset")
)
"""


def prepare(settings: Settings, partitions: int = 2) -> None:
    """Create the table, the topics and the dead-letter topic if they are missing."""
    with Database.open(settings) as database, database.transaction() as connection:
        connection.execute(sa.text(_TABLE))
    with Topics(settings) as topics:
        there = topics.describe([PAYMENTS, REFUNDS])
        for topic in (PAYMENTS, REFUNDS):
            if topic not in there:
                topics.create(topic, partitions)
        create_dead_letter_topic(topics, DEAD_LETTER_TOPIC)


def produce(settings: Settings, count: int) -> None:
    """Add `count` payments; every tenth is refunded, every fiftieth is in another currency."""
    producer = Producer(client_config(settings, enable_idempotence=True))
    for number in range(count):
        currency = "USD" if number % FOREIGN_EVERY == 0 else "EUR"
        entry = {"account": f"A{number % 7}", "amount": f"{number + 1}.00", "currency": currency}
        for topic in (PAYMENTS, REFUNDS) if number % REFUND_EVERY == 0 else (PAYMENTS,):
            producer.produce(topic, json.dumps(entry), key=entry["account"])
        if len(producer) > 50_000:
            producer.flush(30)
    if left := producer.flush(30):
        raise SystemExit(f"{left} records were not produced. Check the broker with `sharequeue status`.")


if __name__ == "__main__":
    loaded = Settings.load()
    prepare(loaded)
    produce(loaded, int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
