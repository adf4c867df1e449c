"""Share consumers that come and go, while their records are counted."""

from __future__ import annotations

import threading
from collections import Counter

from sharequeue import Database, Settings, ShareConsumer
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import work_on


def test_many_consumers_come_and_go(
    settings: Settings, database: Database, make_topic: MakeTopic, group: str
) -> None:
    """Six consumers of two partitions, each closed after a few polls: every record is accepted, none is lost."""
    topic = make_topic(2)
    found: Counter[tuple[int | None, int | None]] = Counter()
    lock = threading.Lock()
    with work_on(settings, database, group) as work:
        for partition in range(2):
            work.produce(topic, 600, partition)

        def consume() -> None:
            while not work.done():
                consumer: ShareConsumer
                with work.consumer(topic, max_poll_records=40) as consumer:
                    for _ in range(5):
                        messages = consumer.poll(0.1)
                        if consumer.commit_sync():
                            with lock:
                                found.update((message.partition(), message.offset()) for message in messages)

        threads = [threading.Thread(target=consume) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(found) == 1200
        assert sum(row.accepted for row in work.status()) == 1200
