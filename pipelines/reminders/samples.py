"""Sample reminders: `python -m pipelines.reminders.samples 10` creates the topics if they are missing, and adds ten
reminders, each due a minute after the previous one.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer

from pipelines.reminders.pipeline import TOPIC
from sharequeue import Settings
from sharequeue.deadletters.topic import create_dead_letter_topic
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics

DEAD_LETTER_TOPIC = "dlq.reminders"


def prepare(settings: Settings) -> None:
    """Create the topic and its dead-letter topic if they are missing."""
    with Topics(settings) as topics:
        if TOPIC not in topics.describe([TOPIC]):
            topics.create(TOPIC, 1)
        create_dead_letter_topic(topics, DEAD_LETTER_TOPIC)


def produce(settings: Settings, reminders: list[dict[str, str]]) -> None:
    """Add reminders: `whom`, `what`, and when they are `due` (ISO 8601, with a time zone)."""
    producer = Producer(client_config(settings, enable_idempotence=True))
    for reminder in reminders:
        producer.produce(TOPIC, json.dumps(reminder), key=reminder.get("whom", ""))
    if left := producer.flush(30):
        raise SystemExit(f"{left} records were not produced. Check the broker with `sharequeue status`.")


if __name__ == "__main__":
    loaded, now = Settings.load(), datetime.now(UTC)
    prepare(loaded)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    later = [(now + timedelta(minutes=number)).isoformat() for number in range(count)]
    produce(
        loaded, [{"whom": f"user-{n}", "what": "water the plants", "due": due} for n, due in enumerate(later)]
    )
