"""Where shall a group begin anew?

Turns an administrator's wish (the log's start, its end, a time, a given offset, where a consumer group stands, what
a file says) into one start offset per share-partition, by Kafka's rules for `kafka-share-groups.sh
--reset-offsets`. Nothing is changed here: the result is for ``State.administration.reset_offsets``, which refuses
while the group has members. The broker's own share groups are read through a file, which their own tool writes:
`kafka-share-groups.sh --reset-offsets --group G --all-topics --to-current --dry-run --export`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sharequeue.errors import GroupIdNotFound, InvalidRequest, UnknownTopicOrPartition
from sharequeue.kafka.topics import LogOffsets, Topics

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Start:
    """One start offset per topic and partition, the topics' ids, and what had to be bent, in words."""

    offsets: Mapping[Partition, int]
    topic_ids: Mapping[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class OffsetResets:
    """The ways to a start offset, for chosen partitions of chosen topics.

    ``wanted`` names topics, each with its partitions, or None for all of them. Every question raises
    UnknownTopicOrPartition for a topic or partition that the broker does not have, and BrokerNotAvailable.
    """

    topics: Topics
    wanted: Mapping[str, tuple[int, ...] | None]
    _logs: dict[Partition, LogOffsets] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)

    def to_earliest(self) -> Start:
        """The log's start."""
        return self._start(lambda _, log: log.log_start)

    def to_latest(self) -> Start:
        """The log's end: only what is produced from now on."""
        return self._start(lambda _, log: log.log_end)

    def to_datetime(self, moment: datetime) -> Start:
        """The first record at or after a time; the log's end where there is none (as Kafka's tool does)."""
        stamp = int(moment.timestamp() * 1000)
        found: dict[Partition, int | None] = {}
        for topic in self.wanted:
            for partition, offset in self.topics.offsets_for_times(topic, stamp).items():
                found[topic, partition] = offset

        warnings: list[str] = []

        def at(partition: Partition, log: LogOffsets) -> int:
            offset = found.get(partition)
            if offset is None:
                # In Kafka's words.
                warnings.append(
                    f"Partition {partition[1]} from topic {partition[0]} is empty. "
                    "Falling back to latest known offset."
                )
            return log.log_end if offset is None else offset

        start = self._start(at)
        return Start(start.offsets, start.topic_ids, tuple(warnings))

    def to_current(self, stored: Mapping[Partition, int]) -> Start:
        """Where the group stands now; the log's end where it has not begun."""
        return self._start(lambda partition, log: stored.get(partition, log.log_end))

    def to_offsets(self, given: Mapping[Partition, int] | int) -> Start:
        """Given offsets, or one for all; moved into the log where they lie outside, with a warning."""
        warnings: list[str] = []

        def at(partition: Partition, log: LogOffsets) -> int:
            wanted = given if isinstance(given, int) else given[partition]
            inside = min(max(wanted, log.log_start), log.log_end)
            if inside != wanted:
                warnings.append(
                    f"{partition[0]}-{partition[1]}: offset {wanted} lies outside the log, "
                    f"{log.log_start} to {log.log_end}; {inside} is taken"
                )
            return inside

        start = self._start(at, None if isinstance(given, int) else given)
        return Start(start.offsets, start.topic_ids, tuple(warnings))

    def from_consumer_group(self, group_id: str) -> Start:
        """The committed offsets of a consumer group of the broker, for the partitions it has committed for.

        Raises GroupIdNotFound when it has committed nothing for these topics.
        """
        committed = self.topics.committed_offsets(group_id)
        chosen = {each: offset for each, offset in committed.items() if self._is_wanted(each)}
        if not chosen:
            raise GroupIdNotFound(
                f"Consumer group {group_id!r} has committed no offset for these topics. Check its name with "
                "kafka-consumer-groups.sh; a share group's offsets come from a file."
            )
        return OffsetResets(self.topics, _by_topic(chosen)).to_offsets(chosen)

    def _is_wanted(self, each: Partition) -> bool:
        if not self.wanted:
            return True
        return each[0] in self.wanted and (
            self.wanted[each[0]] is None or each[1] in (self.wanted[each[0]] or ())
        )

    def _start(
        self, choose: Callable[[Partition, LogOffsets], int], only: Iterable[Partition] | None = None
    ) -> Start:
        self._look()
        chosen = self._logs if only is None else {each: self._logs[each] for each in only}
        return Start({each: choose(each, log) for each, log in chosen.items()}, dict(self._ids))

    def _look(self) -> None:
        known = self.topics.describe(self.wanted)
        for topic, partitions in self.wanted.items():
            info = known.get(topic)
            if info is None:
                raise self.topics.missing(topic)
            self._ids[topic] = info.topic_id
            logs = self.topics.offsets(topic)
            for partition in range(info.partitions) if partitions is None else partitions:
                if partition not in logs:
                    raise UnknownTopicOrPartition(
                        f"Topic {topic!r} has {info.partitions} partitions: there is no {partition}."
                    )
                self._logs[topic, partition] = logs[partition]


def read_offsets(path: Path) -> dict[Partition, int]:
    """Lines of `topic,partition,offset`, as Kafka's tools export them. Raises InvalidRequest for another line."""
    offsets: dict[Partition, int] = {}
    with path.open(newline="") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            if not row:
                continue
            try:
                topic, partition, offset = (cell.strip().strip('"') for cell in row)
                offsets[topic, int(partition)] = int(offset)
            except ValueError:
                raise InvalidRequest(
                    f"{path}, line {number}: expected topic,partition,offset, not {','.join(row)!r}."
                ) from None
    return offsets


def of_file(topics: Topics, path: Path) -> Start:
    """The offsets of a file; one outside its log becomes the nearest end of the log."""
    offsets = read_offsets(path)
    return OffsetResets(topics, _by_topic(offsets)).to_offsets(offsets)


def _by_topic(offsets: Iterable[Partition]) -> dict[str, tuple[int, ...]]:
    topics: dict[str, tuple[int, ...]] = {}
    for topic, partition in sorted(offsets):
        topics[topic] = (*topics.get(topic, ()), partition)
    return topics
