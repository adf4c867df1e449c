"""How does a batch of dead letters reach its topic exactly once, whoever dies when?

Kafka itself promises at least once here. A batch is written in one Kafka transaction together with its marker
(`sharequeue.kafka.transactions`); after a crash the marker shows whether the batch was written.

The marker: group `sharequeue.dlq.<group>`, topic-partition of the source, offset = sequence number of the batch,
metadata = the batch's identity, the topic it went to, and how far. It is lost when the broker forgets it
(`offsets.retention.minutes`, 7 days after the last batch by default) or the source topic is deleted; then, and
when it belongs to another life of the group, the letters themselves are read and only those missing are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sharequeue.deadletters.letters import batch_identity
from sharequeue.deadletters.topic import DeadLetterTopic, refusal
from sharequeue.kafka.transactions import FENCED, MarkedProducer, MarkerGroup
from sharequeue.settings import Settings
from sharequeue.values import DeadLetterBatch, SharePartition


class Fenced(Exception):
    """Another writer has taken the share-partition over, or the transaction outlived its time. Look again."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What the broker remembers of the last batch written from a share-partition."""

    sequence: int
    batch: str
    """The batch's identity."""
    topic: str
    topic_id: str
    through: int
    """The last source offset of the batch that was written; a batch is written by ascending offset."""

    @classmethod
    def of(cls, batch: DeadLetterBatch, topic: DeadLetterTopic) -> Self:
        """The marker of a batch of which nothing is written yet."""
        return cls(batch.sequence, batch_identity(batch), topic.name, topic.topic_id, -1)

    @classmethod
    def parse(cls, at: TopicPartition) -> Self | None:
        """The marker that a committed offset is; None when nothing is committed.

        What somebody else committed, or cut the metadata of, is a marker of no batch of ours.
        """
        if at.offset < 0:
            return None
        batch, topic, topic_id, through = [*(at.metadata or "").split(" "), "", "", "", ""][:4]
        return cls(int(at.offset), batch, topic, topic_id, int(through) if through.isdecimal() else -1)

    def committed_at(self, source: SharePartition) -> TopicPartition:
        """The offset to commit, with the rest as its metadata."""
        metadata = f"{self.batch} {self.topic} {self.topic_id} {self.through}"
        return TopicPartition(source.topic, source.partition, self.sequence, metadata=metadata)

    def is_of(self, sequence: int, batch: str) -> bool:
        """Whether that batch left it."""
        return (self.sequence, self.batch) == (sequence, batch)

    def wrote_all_of(self, batch: DeadLetterBatch) -> bool:
        """Whether that batch was written to its end."""
        last = max(run.offsets.end for run in batch.letters) - 1
        return self.is_of(batch.sequence, batch_identity(batch)) and self.through >= last


def marker_group(group_id: str) -> str:
    """The consumer group under which the markers of a share group are committed.

    The client refuses to commit for a group whose name is more than printable ASCII. Such a name is written as in a
    URL, behind a prefix that no other group's has.
    """
    if all(" " <= each <= "~" for each in group_id):
        return f"sharequeue.dlq.{group_id}"
    return f"sharequeue.dlq-encoded.{quote(group_id, safe='')}"


def transactional_id(source: SharePartition) -> str:
    """One writer at a time: the broker fences an older producer of the same transactional id."""
    return f"sharequeue.dlq.{source.group_id}.{source.topic}.{source.partition}"


class Markers:
    """Reads the markers of one share group, and names it to the transactions that move them."""

    def __init__(self, settings: Settings, group_id: str) -> None:
        self.group = MarkerGroup(settings, marker_group(group_id))
        self._group_id = group_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.group.__exit__(kind, error, trace)

    def of(self, source: SharePartition) -> Marker | None:
        """Return the marker of a share-partition, None without one. Raises `CannotWrite`."""
        try:
            return Marker.parse(self.group.committed(source.topic, source.partition))
        except KafkaException as error:
            group = marker_group(self._group_id)
            grants = f"grant READ on group `{group}` and DESCRIBE on topic `{source.topic}`"
            raise refusal(error, grants) from error


class LetterProducer(MarkedProducer):
    """The producer of one share-partition's letters.

    Every method raises `Fenced` when another writer took over and `CannotWrite` when the broker does not let it.
    """

    def __init__(
        self, settings: Settings, source: SharePartition, topic: DeadLetterTopic, markers: Markers
    ) -> None:
        self._source = source
        self._topic = topic
        self._partition = topic.partition_for(source.partition)
        super().__init__(
            settings,
            transactional_id(source),
            markers.group,
            self._reason,
            # As the broker writes its own: not compressed.
            compression_type="none",
            # The client's own limit must not refuse what the topic takes; its least is 1000.
            message_max_bytes=max(topic.max_message_bytes, 1000),
            # A batch never grows past what the topic takes.
            batch_size=max(1, min(1_000_000, topic.max_message_bytes)),
            # Copies of large records wait on the disk of the source, not in memory here.
            queue_buffering_max_kbytes=64 * 1024,
        )

    def write(self, key: bytes | None, value: bytes | None, headers: list[Any] | dict[str, Any]) -> None:
        """Add one letter, with `Header`s."""
        self.produce(self._topic.name, partition=self._partition, key=key, value=value, headers=headers)

    def _reason(self, error: KafkaException) -> Exception:
        cause: Any = error.args[0]
        if cause.code() in FENCED:
            return Fenced(cause.str())
        if cause.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            what = f"raise `max.message.bytes` of topic `{self._topic.name}`, now {self._topic.max_message_bytes}"
        else:
            what = (
                f"grant WRITE on topic `{self._topic.name}` and on transactional id "
                f"`{transactional_id(self._source)}`, and READ on group `{marker_group(self._source.group_id)}` "
                f"and topic `{self._source.topic}`"
            )
        return refusal(error, what)
