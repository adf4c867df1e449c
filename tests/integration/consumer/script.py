"""A program that consumes a share group: it imports one ShareConsumer or the other, and does the same with both.

``python script.py <module> <config in JSON> <topic>`` prints what it saw, a line of JSON each.
"""

import importlib
import json
import sys
import time

from confluent_kafka import AcknowledgeType, Message, Messages

module, config, topic = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
ShareConsumer = importlib.import_module(module).ShareConsumer
PATIENCE_S = (
    240.0  # as `tests.waiting` has it, which this program cannot import: it also runs without Sharequeue
)
results: list[object] = []


def show(what: str, value: object) -> None:
    print(json.dumps([what, value]), flush=True)


def raised(call: object, *args: object, **kwargs: object) -> list[str]:
    try:
        call(*args, **kwargs)  # type: ignore[operator]
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing"]


def polled(consumer: object, wanted: int) -> list[Message]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        messages = consumer.poll(timeout=0.5)  # type: ignore[attr-defined]
        assert isinstance(messages, Messages)
        if len(messages) >= wanted:
            return list(messages)
        assert messages.is_empty(), f"{len(messages)} of {wanted} records"
    raise AssertionError("nothing came")


def committed(of: dict) -> list[object]:  # type: ignore[type-arg]
    return [
        [at.topic == topic, at.partition, None if error is None else error.args[0].name()]
        for at, error in of.items()
    ]


def called(offsets: dict, error: object) -> None:  # type: ignore[type-arg]
    results.append([[at.partition, sorted(of)] for at, of in offsets.items()] + [error])
    results.append(raised(explicit.commit_async))


for refused, value in {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "group.instance.id": "one",
    "group.protocol": "consumer",
    "group.remote.assignor": "uniform",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "range",
    "queued.min.messages": 1,
}.items():
    show("refused", raised(ShareConsumer, {**config, refused: value}))
for refused in ("heartbeat.interval.ms", "session.timeout.ms", "interceptor.classes", "no.such"):
    show("refused", raised(ShareConsumer, {**config, refused: "45000"})[0])
for arguments in (
    ("x",),
    ({**config, "max.poll.records": 0, "group.id": "g"},),
):
    show("refused", raised(ShareConsumer, *arguments)[0])
show("refused", raised(ShareConsumer, {**config, "on_commit": print}))
show("refused", raised(ShareConsumer, {name: of for name, of in config.items() if name != "group.id"}))

with ShareConsumer({**config, "share.acknowledgement.mode": "explicit"}) as explicit:
    show("not subscribed", raised(explicit.poll, 0.1))
    for topics in ("text", None, [""], ["a", "a"]):
        show("subscribe", raised(explicit.subscribe, topics))
    explicit.set_acknowledgement_commit_callback(called)
    explicit.subscribe([topic])
    show("subscription", len(explicit.subscription()))
    messages = polled(explicit, 6)
    show(
        "polled",
        [[m.offset(), m.delivery_count(), str(m.value()), str(m.key()), m.headers()] for m in messages],
    )
    show("poll again", raised(explicit.poll, 0.1))
    show("nothing acknowledged", committed(explicit.commit_sync(timeout=PATIENCE_S)))
    explicit.acknowledge(messages[0])
    explicit.acknowledge(messages[1], AcknowledgeType.ACCEPT)
    explicit.acknowledge(messages[1], AcknowledgeType.RELEASE)
    explicit.acknowledge_offset(topic, 0, 2, AcknowledgeType.REJECT)
    for kind in (0, 9, "x", None):
        show("wrong type", raised(explicit.acknowledge, messages[3], kind))
    for place in (
        (topic, 0, 99),
        (topic, 7, 0),
        ("no-" + topic, 0, 0),
        (topic, -1, 0),
        (topic, 0, -1),
        (topic, 0, 1.5),
    ):
        show("wrong offset", raised(explicit.acknowledge_offset, *place))
    show("no message", raised(explicit.acknowledge, None)[0])
    show("no topic", raised(explicit.acknowledge, Message(partition=0, offset=0)))
    show("part", committed(explicit.commit_sync(timeout=PATIENCE_S)))
    show("again", raised(explicit.acknowledge, messages[0]))
    show("poll again", raised(explicit.poll, 0.1))
    for message in messages[3:]:
        explicit.acknowledge(message)
    show("all", committed(explicit.commit_sync()))
    show("nothing", committed(explicit.commit_sync()))
    show("results", results)
    released = polled(explicit, 1)
    show("released", [[m.offset(), m.delivery_count()] for m in released])
show("closed", raised(explicit.poll, 0.1))
show("closed", raised(explicit.acknowledge, None))
show("closed twice", raised(explicit.close))

implicit = ShareConsumer(config)
implicit.subscribe([topic])
messages = polled(implicit, 1)
show("came back", [[m.offset(), m.delivery_count()] for m in messages])
show("not explicit", raised(implicit.acknowledge, messages[0]))
show("committed", committed(implicit.commit_sync()))
show("nothing left", len(implicit.poll(timeout=0.3)))
implicit.unsubscribe()
show("unsubscribed", raised(implicit.poll, 0.1))
implicit.close()
