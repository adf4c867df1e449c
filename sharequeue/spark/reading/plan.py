"""Plan the scans that read a lease.

Spark's Kafka connector takes one range for each topic-partition and load, because its offsets are a JSON map. So
offsets that are far apart need either several loads, or one load that also reads what is between them. This module
decides without any I/O: at most `max_scans` loads, with as few unneeded offsets as that allows. `frame.py` filters
out the unneeded records.

A partition that may be cut into k pieces is cut at its k - 1 largest holes. No other choice of cuts reads less,
because the unneeded offsets are exactly the holes that are not cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sharequeue.domain.offsets import OffsetSet, Range

TopicPartition = tuple[str, int]

MAX_SCANS = 4
"""The most scans of a lease."""
NEAR = 50_000
"""The largest hole, in offsets, that is read over: another scan takes longer than reading so many records."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Offsets from `first` up to, but not including, `end` of one topic-partition, read in one go."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def records(self) -> int:
        """The number of its offsets, leased or not."""
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Scan:
    """One load of the connector: at most one segment of any topic-partition."""

    segments: tuple[Segment, ...]

    def options(self) -> dict[str, str]:
        """Return the connector's options that make it read these segments and nothing else."""
        partitions: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for segment in self.segments:
            partitions.setdefault(segment.topic, []).append(segment.partition)
            starts.setdefault(segment.topic, {})[str(segment.partition)] = segment.first
            ends.setdefault(segment.topic, {})[str(segment.partition)] = segment.end
        return {
            "assign": json.dumps(partitions),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }


def plan_scans(
    leased: Mapping[TopicPartition, OffsetSet], *, max_scans: int = MAX_SCANS, near: int = NEAR
) -> tuple[Scan, ...]:
    """Return the scans that read every leased offset once, at most `max_scans` of them.

    Holes of up to `near` offsets are always read over. Raises ValueError unless `max_scans` is at least 1.
    """
    if max_scans < 1:
        raise ValueError(f"max_scans is {max_scans}: at least one scan is needed to read anything")
    layers: list[list[Segment]] = []
    for (topic, partition), offsets in sorted(leased.items()):
        for layer, (first, end) in enumerate(_pieces(offsets, max_scans, near)):
            if layer == len(layers):
                layers.append([])
            layers[layer].append(Segment(topic, partition, first, end))
    return tuple(Scan(tuple(segments)) for segments in layers)


def _pieces(offsets: OffsetSet, most: int, near: int) -> list[Range]:
    """Return the span of a set of offsets, cut at its largest holes into at most `most` pieces."""
    if not offsets:
        return []
    bounds = offsets.bounds
    sizes = bounds[1:, 0] - bounds[:-1, 1]
    far = np.flatnonzero(sizes > near)
    # The largest holes; among equal ones the lowest.
    cut = np.sort(far[np.argsort(-sizes[far], kind="stable")[: most - 1]])
    firsts = [offsets.first, *bounds[cut + 1, 0].tolist()]
    ends = [*bounds[cut, 1].tolist(), offsets.end]
    return list(zip(firsts, ends, strict=True))
