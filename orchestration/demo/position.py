"""The position of the group, from the state and the broker together.

The state has the log ends that were observed; records produced a moment ago are only in the broker's
response. The group is drained when both agree that nothing is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.kafka.topics import LogOffsets, Topics
from sharequeue.state import State


@dataclass(frozen=True, slots=True)
class Position:
    """The share-partitions of one topic and, read just before, the broker's log ends."""

    statuses: tuple[SharePartitionStatus, ...]
    logs: Mapping[int, LogOffsets]

    @property
    def unseen(self) -> int:
        """Records in the logs that the state has not observed, or whose partition is not initialised."""
        known = {status.partition: status.log_end for status in self.statuses}
        return sum(
            max(0, log.log_end - known.get(partition, log.log_start)) for partition, log in self.logs.items()
        )

    @property
    def lag(self) -> int:
        """Records that have not ended: the state's lag and the unobserved records."""
        return sum(status.lag for status in self.statuses) + self.unseen

    @property
    def waiting(self) -> int:
        """Records that a new run could lease, and dead letters that it could write."""
        return sum(max(0, status.lag - status.acquired) for status in self.statuses) + self.unseen

    @property
    def archiving(self) -> int:
        """Dead letters that are not yet written."""
        return sum(status.archiving for status in self.statuses)

    @property
    def total(self) -> int:
        """Records in the logs."""
        return sum(log.log_end - log.log_start for log in self.logs.values())

    @property
    def done(self) -> bool:
        """Whether nothing is left to do and nothing is leased."""
        return self.lag == 0


def look(state: State, topics: Topics, group_id: str, topic: str) -> Position:
    """Return the group's current position in ``topic``. Raises as ``Topics.offsets`` does."""
    # The logs first: records produced between the two queries count in the next position.
    logs = topics.offsets(topic)
    statuses = tuple(status for status in state.figures.describe(group_id) if status.topic == topic)
    return Position(statuses, logs)
