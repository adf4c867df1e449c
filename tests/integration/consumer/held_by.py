"""A process that polls once and then waits with what it has in hand: `held_by.py <config> <topic> [finish]`."""

import json
import signal
import sys
import time

from sharequeue import ShareConsumer

config, topic = json.loads(sys.argv[1]), sys.argv[2]
stopping: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
with ShareConsumer(config) as consumer:
    consumer.subscribe([topic])
    messages = consumer.poll(0.5)
    while not len(messages):
        messages = consumer.poll(0.5)
    print(json.dumps([message.offset() for message in messages]), flush=True)
    if "finish" in sys.argv:
        # The record in hand takes its time; the signal comes meanwhile.
        while not stopping:
            time.sleep(0.01)
        assert all(error is None for error in consumer.commit_sync().values())
    else:
        sys.stdin.readline()
        results = consumer.commit_sync()
        print(
            json.dumps([None if each is None else each.args[0].name() for each in results.values()]),
            flush=True,
        )
