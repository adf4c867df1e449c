"""The selection of a replay: a span of time, offsets, or what some leases had accepted.

Values and their parsers, shared by Python, the command line and Dagster. Nothing here sends a request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Self
from zoneinfo import ZoneInfo

from sharequeue.domain.offsets import EMPTY, MAX_OFFSET, MAX_PARTITION, OffsetSet
from sharequeue.spark.reading.plan import TopicPartition

_OFFSETS = re.compile(r"([^:]+):(\d+):(\d+)(?:-(\d+))?")
_LEASES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_ONE_DAY = timedelta(days=1)
MOST_LEASES = 100_000
"""The most leases that a text may name."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Records whose timestamps are at or after `since` and before `until`; a time without a zone is UTC, and both are
    UTC afterwards: Python compares two times of one zone by local clock time, which repeats in autumn.

    Raises ValueError when `until` is not after `since`, and for a `name` that cannot be a folder's name.
    """

    since: datetime
    until: datetime
    name: str = ""
    """The name of the replay; by default made from its times."""

    def __post_init__(self) -> None:
        for field in ("since", "until"):
            given = getattr(self, field)
            given = given.astimezone(UTC) if given.tzinfo else given.replace(tzinfo=UTC)
            object.__setattr__(self, field, given)
        if self.until <= self.since:
            raise ValueError(f"until {self.until.isoformat()} is not after since {self.since.isoformat()}")
        object.__setattr__(self, "name", checked_name(self.name or self._own_name()))

    @classmethod
    def of_day(cls, day: str, timezone: str = "UTC") -> Self:
        """Return the window of a day such as `2013-01-01` in a time zone. Raises ValueError for anything else."""
        try:
            first = date.fromisoformat(day)
        except ValueError:
            raise ValueError(f"{day!r} is not a day: expected one such as 2013-01-01") from None
        zone = ZoneInfo(timezone)
        begin, end = (datetime.combine(at, time(), zone) for at in (first, first + _ONE_DAY))
        return cls(begin, end, first.isoformat())

    @property
    def since_ms(self) -> int:
        """The first millisecond of the window, since 1970."""
        return _milliseconds(self.since)

    @property
    def until_ms(self) -> int:
        """The first millisecond after the window, since 1970."""
        return _milliseconds(self.until)

    def _own_name(self) -> str:
        since, until = self.since, self.until
        if since.time() == time() and until - since == _ONE_DAY:
            return since.date().isoformat()
        return f"{since:%Y%m%dT%H%M%S.%fZ}-{until:%Y%m%dT%H%M%S.%fZ}".replace(".000000Z", "Z")

    def __str__(self) -> str:
        return f"timestamps from {self.since.isoformat()} to {self.until.isoformat()}"


def parse_offsets(texts: Iterable[str]) -> dict[TopicPartition, OffsetSet]:
    """Parse offsets, each text `TOPIC:PARTITION:FIRST-LAST` or `TOPIC:PARTITION:OFFSET`. Raises ValueError."""
    found: dict[TopicPartition, OffsetSet] = {}
    for text in texts:
        given = _OFFSETS.fullmatch(text)
        first, last = (int(given[3]), int(given[4] or given[3])) if given else (1, 0)
        if given is None or not first <= last <= MAX_OFFSET or int(given[2]) > MAX_PARTITION:
            raise ValueError(
                f"{text!r}: expected TOPIC:PARTITION:FIRST-LAST or TOPIC:PARTITION:OFFSET, with offsets of 0 to "
                f"{MAX_OFFSET}"
            )
        at = given[1], int(given[2])
        found[at] = found.get(at, EMPTY) | OffsetSet.of((first, last + 1))
    return found


def parse_leases(texts: Iterable[str]) -> tuple[int, ...]:
    """Parse lease ids, each text such as `7` or `3-5,9`, in the form of a run's tag `sharequeue/leases`.

    Raises ValueError.
    """
    ids: set[int] = set()
    for text in texts:
        if not _LEASES.fullmatch(text):
            raise ValueError(
                f"{text!r}: expected lease ids such as 7 or 3-5,9; a tag that ends in … does not name all leases"
            )
        for part in text.split(","):
            first, _, last = part.partition("-")
            if int(last or first) > MAX_OFFSET:
                raise ValueError(f"{part}: a lease id is a number up to {MAX_OFFSET}")
            if int(last or first) - int(first) >= MOST_LEASES:
                raise ValueError(f"{part}: that is more than {MOST_LEASES:,} leases")
            ids.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(ids))


def checked_name(name: str) -> str:
    """Return a replay's name after a check that it can be a folder's name. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be the name of a replay, which becomes a folder's: use letters, digits, dots, "
            "hyphens and underscores, with a letter or digit first, 200 at most"
        )
    return name


def name_of_offsets(offsets: Mapping[TopicPartition, OffsetSet]) -> str:
    """Return the name of a replay of these offsets; equal offsets give the same name."""
    text = ";".join(f"{topic}:{partition}:{some}" for (topic, partition), some in sorted(offsets.items()))
    return f"offsets-{hashlib.blake2s(text.encode(), digest_size=6).hexdigest()}"


def name_of_leases(lease_ids: Sequence[int]) -> str:
    """Return the name of a replay of what these leases had accepted."""
    if len(lease_ids) == 1:
        return f"lease-{lease_ids[0]}"
    text = ",".join(map(str, sorted(lease_ids)))
    return f"leases-{hashlib.blake2s(text.encode(), digest_size=6).hexdigest()}"


def _milliseconds(at: datetime) -> int:
    """Return a time as a Kafka timestamp, rounded up, so that a record of that millisecond is not before the time."""
    micros = (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
    return -(-micros // 1000)
