"""What a topic as a sink asks and says, without a broker: its first markers, its limits, and its reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import pytest
from confluent_kafka import KafkaError, TopicPartition

from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Transfer
from sharequeue.kafka.topics import TopicInfo
from sharequeue.spark import KafkaTopic
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.sinks.interface import SinkContext, SinkRefused
from sharequeue.spark.sinks.kafka import topic as topic_module
from sharequeue.spark.sinks.kafka.refusals import Refusals
from sharequeue.spark.sinks.kafka.sending import REFUSED, Names, TransferToSend
from sharequeue.spark.sinks.kafka.target import latest_ms, refuse_validated
from sharequeue.spark.sinks.kafka.topic import _OpenTopic, described, rows_named
from sharequeue.spark.sinks.transfers import TransferHeld

Place = tuple[str, int]


class Broker:
    """A broker with some markers, and with the target."""

    def __init__(self) -> None:
        self.marked: set[Place] = set()
        self.committed: list[Place] = []
        self.asked = 0
        self.rows: dict[Place, int] = {}
        self.target: TopicInfo | None = TopicInfo("id", 1, replicas=1)
        self.target_configs = {"max.message.bytes": "1000"}
        self.outputs: Any = self

    def markers(self, client: Any, group: str, *, stable: bool) -> Broker:
        assert not stable
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def committed_of(self, places: Sequence[Place]) -> list[TopicPartition]:
        self.asked += 1
        return [TopicPartition(*at, 0 if at in self.marked else -1001) for at in places]

    def commit(self, sending: object, topic: str, partition: int, may: Callable[[], bool]) -> None:
        self.committed.append((topic, partition))
        self.marked.add((topic, partition))

    def describe(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        return {} if self.target is None else dict.fromkeys(names, self.target)

    def configs(self, name: str) -> dict[str, str]:
        return self.target_configs

    def waiting(self, group: str, sink: str) -> dict[Place, int]:
        return self.rows


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    found = Broker()
    monkeypatch.setattr(topic_module, "MarkerGroup", found.markers)
    monkeypatch.setattr(topic_module, "commit_first_marker", found.commit)
    return found


def opened(broker: Broker, sink: KafkaTopic) -> _OpenTopic:
    """Return a sink in a run, without a state and without Spark."""
    nothing: Any = None
    given: Any = broker
    return _OpenTopic(
        SinkContext(
            Settings({"bootstrap_servers": "broker:9092"}), given, nothing, SinkNames("g", "s"), ("source",)
        ),
        f"kafka:{sink.topic}",
        sink.on_step,
        sink=sink,
        topics=given,
        names=Names("g", "s", "state"),
        most_waiting=10,
        target=described(sink, given),
        remark=None,
        refusals=Refusals(sink.topic, Names("g", "s", "state")),
    )


def test_a_marker_is_looked_up_in_each_round(broker: Broker) -> None:
    """The broker removes one that is old, also during a long run: it is committed again before rows wait for it."""
    sink = opened(broker, KafkaTopic("t"))
    both = [("source", 0), ("source", 1)]
    sink._mark(both)
    sink._mark(both)
    assert (broker.committed, broker.asked) == (both, 2)
    broker.marked.remove(("source", 1))
    sink._mark(both)
    assert broker.committed == [*both, ("source", 1)]


def test_a_topic_that_validates_schemas_needs_subjects() -> None:
    """Its broker would refuse each record after its acknowledgement."""
    given = {"confluent.key.schema.validation": "false", "confluent.value.schema.validation": "true"}
    with pytest.raises(SinkRefused, match=r"confluent\.value\.schema\.validation=true.*set `value_subject`"):
        refuse_validated("t", {"key": None, "value": None}, given)
    refuse_validated("t", {"key": None, "value": "t-value"}, given)


def test_a_topic_that_has_times_of_its_own_limits_none() -> None:
    """The limit applies to the timestamps of producers, which such a topic replaces."""
    hour = {"message.timestamp.after.max.ms": "3600000"}
    assert latest_ms(hour) == 3_600_000
    assert latest_ms({**hour, "message.timestamp.type": "LogAppendTime"}) is None
    assert latest_ms({"message.timestamp.after.max.ms": "9223372036854775807"}) is None


def test_a_topic_is_described_again_in_each_round(broker: Broker) -> None:
    """Its limits are those of the round, so that no row is rejected for a limit that was raised. While it is gone,
    the last ones hold; one that cannot take the results any more ends the run."""
    sink = opened(broker, KafkaTopic("t"))
    assert (sink.target.partitions, sink.target.max_message_bytes) == (1, 1_000)
    broker.target, broker.target_configs = TopicInfo("id", 3, replicas=1), {"max.message.bytes": "2000"}
    assert sink.waits() is None
    known = sink.target
    assert (known.partitions, known.max_message_bytes, known.most_bytes) == (3, 2_000, 2_000)
    broker.target = None
    assert sink.waits() is None
    assert sink.target == known
    broker.target, broker.target_configs = TopicInfo("id", 3, replicas=1), {"cleanup.policy": "compact"}
    with pytest.raises(SinkRefused, match="takes no record without a key"):
        sink.waits()


def test_rows_are_sent_in_smaller_batches_after_the_limit_was_lowered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lowered after the round began: the broker refuses a batch of records that it takes one by one. Rows that
    it refuses again wait."""
    sink, sizes, refusals = opened(broker, KafkaTopic("t")), list[int](), [True, False]

    def sent(self: object, sources: object, sending: TransferToSend) -> list[dict[str, object]]:
        sizes.append(sending.producer["batch.size"])
        code = KafkaError.MSG_SIZE_TOO_LARGE
        report = {"topic": "source", "partition": 3, "code": code, "reason": "too large"}
        return [{**report, "problem": REFUSED if refusals.pop(0) else None}]

    monkeypatch.setattr(_OpenTopic, "_sources", lambda self, found: [])
    monkeypatch.setattr(_OpenTopic, "_sent", sent)
    transfer = Transfer(1, {}, 1, busy=False)
    broker.target_configs = {"max.message.bytes": "500"}
    sink._send(transfer)
    assert sizes == [1_000, 500]
    refusals += [True]
    with pytest.raises(TransferHeld, match=r"raise max\.message\.bytes of the topic"):
        sink._send(transfer)
    assert sizes == [1_000, 500, 500]


def test_a_topic_that_is_gone_names_the_rows_that_wait_for_it(broker: Broker) -> None:
    """A run cannot begin without its limits, and the rows stay in their files."""
    context, broker.target = opened(broker, KafkaTopic("t")).context, None
    given: Any = broker
    with (
        pytest.raises(SinkRefused, match=r"there is no topic t: create it first\.$"),
        rows_named(context, "t"),
    ):
        described(KafkaTopic("t"), given)
    broker.rows = {("source", 0): 4, ("source", 1): 6}
    with (
        pytest.raises(SinkRefused, match=r"create it first\. 10 accepted rows wait for t"),
        rows_named(context, "t"),
    ):
        described(KafkaTopic("t"), given)


def reason(broker: Broker, code: int) -> str:
    """Return why rows wait that the broker refuses with this error."""
    refused = {"topic": "source", "partition": 3, "problem": REFUSED, "code": code, "reason": "as it says"}
    return opened(broker, KafkaTopic("t")).refusals.reason([refused])


def test_a_record_that_the_broker_refuses_can_be_given_up(broker: Broker) -> None:
    """The reason names the command."""
    assert reason(broker, KafkaError.INVALID_RECORD).endswith(
        "If it never takes them, give up what was not sent of this transfer: `sharequeue results resume --group g "
        "--sink s --to t` with --count-as-written --also-unsent."
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "grant WRITE on topic t"),
        (
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
            "set transaction.max.timeout.ms of the brokers to at least 60000",
        ),
        (KafkaError.INVALID_TIMESTAMP, "check message.timestamp.before.max.ms"),
        (KafkaError._UNKNOWN_PARTITION, "give the topic as many partitions as"),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "see the broker's log"),
        (KafkaError._TIMED_OUT, "one broker alone needs transaction.state.log.replication.factor=1"),
        (KafkaError.UNSTABLE_OFFSET_COMMIT, "Or a transaction hangs: `kafka-transactions.sh find-hanging`."),
    ],
)
def test_each_refusal_has_its_remedy(broker: Broker, code: int, expected: str) -> None:
    """Rights are named only if one is missing; the same before the acknowledgement and after it."""
    assert expected in reason(broker, code)
    assert expected in str(opened(broker, KafkaTopic("t")).refusals.no_marker(KafkaError(code)))
