"""A process that polls once and then waits with what it has in hand: `held_by.py <config> <topic> [finish]`."""

import json
import sys
import time

from sharequeue import ShareConsumer

config, topic = json.loads(sys.argv[1]), sys.argv[2]
with ShareConsumer(config) as consumer:
    consumer.stop_on_signal(timeout=20)
    consumer.subscribe([topic])
    messages = consumer.poll(0.5)
    while not len(messages):
        messages = consumer.poll(0.5)
    print(json.dumps([message.offset() for message in messages]), flush=True)
    if "finish" in sys.argv:
        # The record in hand takes its time; the signal comes meanwhile.
        while not consumer.stopping:
            time.sleep(0.01)
        assert consumer.poll(5).is_empty()
        assert all(error is None for error in consumer.commit_sync().values())
    else:
        sys.stdin.readline()
        results = consumer.commit_sync()
        print(
            json.dumps([None if each is None else each.args[0].name() for each in results.values()]),
            flush=True,
        )
