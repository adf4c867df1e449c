"""Find the offsets at which a group begins with a topic, and those to which it is reset.

Converts the target of an administrator (the log's start, its end, a time, a given offset, the offsets of a consumer
group or of a file) into one start offset per share-partition, by Kafka's rules for `kafka-share-groups.sh
--reset-offsets`. Nothing is changed here: the result is for ``State.administration.reset_offsets``, which refuses
while the group has members. Offsets of the broker's own share groups are read from a file that Kafka's tool writes:
`kafka-share-groups.sh --reset-offsets --group G --all-topics --to-current --dry-run --export`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

from sharequeue.domain.errors import GroupIdNotFound, InvalidRequest, UnknownTopicOrPartition
from sharequeue.domain.names import shown
from sharequeue.kafka.text_files import TextUnreadable, read_text
from sharequeue.kafka.topics import LogOffsets, Topics

Partition = tuple[str, int]

_LINE = "topic,partition,offset"


def first_offsets(
    topics: Topics, topic: str, policy: str, back: timedelta | None, now: float, patience: float | None = None
) -> Mapping[int, int | None]:
    """Return the offset of each partition of a topic at which a group begins (R-OR-2).

    `policy` is the value of `share.auto.offset.reset`; `back` is how far back `by_duration` reaches from `now` (Unix
    seconds), None for the other policies. None as an offset: no record is recent enough yet. `patience` and errors
    as `Topics.offsets`.
    """
    if back is not None:
        return topics.offsets_for_times(topic, int((now - back.total_seconds()) * 1000), patience)
    return first_offsets_in(topics.offsets(topic, patience), policy)


def first_offsets_in(logs: Mapping[int, LogOffsets], policy: str) -> dict[int, int | None]:
    """Return the offsets at which a group with the policy `earliest` or `latest` begins in these logs."""
    return {
        partition: log.log_start if policy == "earliest" else log.log_end for partition, log in logs.items()
    }


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """One start offset per topic and partition, the topics' ids, and warnings of offsets that were adjusted."""

    offsets: Mapping[Partition, int]
    topic_ids: Mapping[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class OffsetResets:
    """The methods to find start offsets, for chosen partitions of chosen topics.

    ``wanted`` names topics, each with its partitions, or None for all of them. Every method raises
    UnknownTopicOrPartition for a topic or partition that the broker does not have, and BrokerNotAvailable.
    """

    topics: Topics
    wanted: Mapping[str, tuple[int, ...] | None]
    _logs: dict[Partition, LogOffsets] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)

    def to_earliest(self) -> ResetOffsets:
        """Return the log's start."""
        return self._start(lambda _, log: log.log_start)

    def to_latest(self) -> ResetOffsets:
        """Return the log's end: only what is produced from now on."""
        return self._start(lambda _, log: log.log_end)

    def to_datetime(self, moment: datetime) -> ResetOffsets:
        """Return the first record at or after a time; the log's end if there is none (as Kafka's tool does)."""
        stamp = int(moment.timestamp() * 1000)
        found: dict[Partition, int | None] = {}
        for topic in self.wanted:
            for partition, offset in self.topics.offsets_for_times(topic, stamp).items():
                found[topic, partition] = offset

        warnings: list[str] = []

        def at(partition: Partition, log: LogOffsets) -> int:
            offset = found.get(partition)
            if offset is None:
                # The text of Kafka's tool.
                warnings.append(
                    f"Partition {partition[1]} from topic {partition[0]} is empty. "
                    "Falling back to latest known offset."
                )
            return log.log_end if offset is None else offset

        start = self._start(at)
        return ResetOffsets(start.offsets, start.topic_ids, tuple(warnings))

    def to_current(self, stored: Mapping[Partition, int]) -> ResetOffsets:
        """Return the group's position; the log's end if it has none."""
        return self._start(lambda partition, log: stored.get(partition, log.log_end))

    def to_offsets(self, given: Mapping[Partition, int] | int) -> ResetOffsets:
        """Return given offsets, or one for all. Offsets outside the log are moved into it, with a warning."""
        warnings: list[str] = []

        def at(partition: Partition, log: LogOffsets) -> int:
            wanted = given if isinstance(given, int) else given[partition]
            inside = min(max(wanted, log.log_start), log.log_end)
            if inside != wanted:
                warnings.append(
                    f"{partition[0]}-{partition[1]}: offset {wanted} lies outside the log, {log.log_start} "
                    f"to {log.log_end}; {inside} is used"
                )
            return inside

        start = self._start(at, None if isinstance(given, int) else given)
        return ResetOffsets(start.offsets, start.topic_ids, tuple(warnings))

    def from_consumer_group(self, group_id: str) -> ResetOffsets:
        """Return the committed offsets of a consumer group of the broker, for the partitions it has committed for.

        Raises GroupIdNotFound if it has committed nothing for these topics.
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
    ) -> ResetOffsets:
        self._look()
        chosen = self._logs if only is None else {each: self._logs[each] for each in only}
        return ResetOffsets({each: choose(each, log) for each, log in chosen.items()}, dict(self._ids))

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
                        f"Topic {topic!r} has {info.partitions} partitions: there is no partition "
                        f"{partition}."
                    )
                self._logs[topic, partition] = logs[partition]


def read_offsets(path: Path) -> dict[Partition, int]:
    """Read lines of `topic,partition,offset`, as Kafka's tools export them.

    Raises InvalidRequest for a line of another form, a partition that is named twice, a file without a line, and a
    file that is not UTF-8.
    """
    try:
        text = read_text(path, f"lines of {_LINE}")
    except TextUnreadable as error:
        raise InvalidRequest(str(error)) from None
    offsets: dict[Partition, int] = {}
    lines: dict[Partition, int] = {}
    rows = csv.reader(StringIO(text, newline=""))
    try:
        for row in filter(None, rows):
            at, offset = _line(row)
            if at in lines:
                raise InvalidRequest(
                    f"{path}, line {rows.line_num}: partition {at[1]} of topic {shown(at[0])} is named twice, first "
                    f"in line {lines[at]}: give it one start offset."
                )
            offsets[at], lines[at] = offset, rows.line_num
    except (csv.Error, ValueError) as error:
        raise InvalidRequest(f"{path}, line {rows.line_num}: expected {_LINE}, {error}.") from None
    if not offsets:
        raise InvalidRequest(f"{path} has no line: expected lines of {_LINE}.")
    return offsets


def _line(row: list[str]) -> tuple[Partition, int]:
    """Parse a line. Raises ValueError for another form."""
    try:
        topic, index, start = (cell.strip().strip('"') for cell in row)
        return (topic, int(index)), int(start)
    except ValueError:
        raise ValueError(f"not {shown(','.join(row))}") from None


def of_file(topics: Topics, path: Path) -> ResetOffsets:
    """Return the offsets of a file; one outside its log is moved to the nearest end of the log."""
    offsets = read_offsets(path)
    return OffsetResets(topics, _by_topic(offsets)).to_offsets(offsets)


def _by_topic(offsets: Iterable[Partition]) -> dict[str, tuple[int, ...]]:
    topics: dict[str, tuple[int, ...]] = {}
    for topic, partition in sorted(offsets):
        topics[topic] = (*topics.get(topic, ()), partition)
    return topics
