"""What the broker of a recorded scenario says of its topics.

The questions of `sharequeue.kafka.topics.Topics`, answered from the scenario's logs as they are now, so that the
service's watch and an operator's resets run as they do in production. No broker is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sharequeue.domain.errors import ShareError
from sharequeue.kafka.topics import LogOffsets, TopicInfo, Topics, TopicsFound

if TYPE_CHECKING:
    from tests.conformance.stage import Stage


class RecordedTopics(Topics):
    """The topics of one scenario."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def cluster_id(self) -> str:
        return "recorded"

    def names(self) -> list[str]:
        return sorted(self.stage.partitions)

    def ask(self, names: Iterable[str]) -> TopicsFound:
        there = {name: self.stage.partitions[name] for name in names if name in self.stage.partitions}
        return TopicsFound({name: TopicInfo(f"id-of-{name}", count) for name, count in there.items()}, {})

    def offsets(self, name: str, patience: float | None = None) -> dict[int, LogOffsets]:
        found = {}
        for partition in range(self.stage.partitions[name]):
            ends = self.stage.logs[name, partition].ends(self.stage.now, "earliest")
            found[partition] = LogOffsets(ends.start, ends.end, ends.last_stable)
        return found

    def offsets_of(
        self, partitions: Mapping[str, Iterable[int]], refused: dict[str, ShareError] | None = None
    ) -> dict[tuple[str, int], LogOffsets]:
        """The ends. A moved log start is left to the fetch that finds it, as the recorded broker left it."""
        return {
            (name, partition): LogOffsets(0, log.log_end, log.last_stable_offset)
            for name in partitions
            for partition, log in self.offsets(name).items()
        }

    def offsets_for_times(
        self, name: str, timestamp_ms: int, patience: float | None = None
    ) -> dict[int, int | None]:
        since = self.stage.now + timestamp_ms / 1000 - time.time()
        return {
            partition: self.stage.logs[name, partition].first_since(since)
            for partition in range(self.stage.partitions[name])
        }
