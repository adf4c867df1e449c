"""Which dead letters are the newest, and which come before them?

A dead-letter topic is read from its ends backwards, a little at a time, for whoever looks at it: for some seconds at
most, and of large records only their beginning is kept. What was looked through is where the next page begins. How a
topic is read forwards is `reading`'s question.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import BoundedSemaphore, Thread
from types import MappingProxyType

from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.errors import ShareError, UnknownTopicOrPartition
from sharequeue.kafka.topics import LogOffsets, Topics
from sharequeue.settings import Settings

SECONDS = 3.0
"""How long a topic is read for one page."""
KEPT_BYTES, KEPT_BYTES_OF_ONE = 4_096, 65_536
"""Of each key, value and header: of one letter among many, and of one that is looked at alone."""
_MOST_HEADERS = 100
_FIRST, _TIMES, _LARGEST = 5, 4, 5_000
"""Offsets of each partition that are read at first, and how many times more after that."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

_LATE = "The topic was read for {:g} s, and did not answer in time."

_readers = BoundedSemaphore(2)
"""A client that waits for a broker cannot be interrupted: so many may wait, whoever goes on asking."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A dead letter, of which long parts are cut, and how long key and value are. None is null."""

    letter: DeadLetter
    key_bytes: int | None
    value_bytes: int | None


@dataclass(slots=True)
class Browsed:
    """Dead letters, the newest first; and what was in the way of finding more."""

    letters: list[Seen] = field(default_factory=list)
    older: dict[int, int] = field(default_factory=dict)
    """Where the page before these ends, by partition; empty where there is nothing older."""
    offsets: int = 0
    """How many offsets were looked through."""
    remark: str = ""


def browse(
    settings: Settings,
    topic: str,
    takes: Callable[[DeadLetter], bool],
    *,
    before: Mapping[int, int] = MappingProxyType({}),
    most: int = 20,
    seconds: float = SECONDS,
) -> Browsed:
    """Return the newest letters that are taken, of those before some offsets. Raises nothing: the remark has why
    there are no more."""
    return _within(seconds, lambda deadline: _browse(settings, topic, takes, before, most, deadline))


def letter_at(
    settings: Settings, topic: str, partition: int, offset: int, seconds: float = SECONDS
) -> Browsed:
    """Return the letter at an offset, if there is one. Raises nothing, as `browse`."""

    def look(deadline: float) -> Browsed:
        logs = _logs(settings, topic, deadline)
        if (
            partition not in logs
            or not logs[partition].log_start <= offset < logs[partition].last_stable_offset
        ):
            return Browsed()
        one, end = {partition: offset}, {partition: offset + 1}
        only = {partition: logs[partition]}
        found = _read(settings, topic, one, end, only, lambda letter: True, deadline, KEPT_BYTES_OF_ONE)
        return Browsed(found or [], remark="" if found is not None else _LATE.format(seconds))

    return _within(seconds, look)


def _within(seconds: float, look: Callable[[float], Browsed]) -> Browsed:
    deadline = time.monotonic() + seconds
    if not _readers.acquire(timeout=seconds):
        return Browsed(remark="Others read dead letters just now. Try again in a moment.")
    found = Browsed(remark=_LATE.format(seconds))

    def work() -> None:
        nonlocal found
        try:
            found = look(deadline)
        except UnknownTopicOrPartition:
            # Without names that are like it: who looks may not be allowed to see them.
            found = Browsed(remark="There is no topic of this name on the broker, or not yet.")
        except ShareError as error:
            found = Browsed(remark=error.message)
        except Exception as error:  # of the client: whoever looks is told
            found = Browsed(remark=f"The topic could not be read: {error}")
        finally:
            _readers.release()

    thread = Thread(target=work, name="sharequeue-browse", daemon=True)
    thread.start()
    thread.join(seconds + 0.5)
    return found


def _logs(settings: Settings, topic: str, deadline: float) -> dict[int, LogOffsets]:
    with Topics(settings, max(0.1, deadline - time.monotonic() - 0.3)) as topics:
        return topics.offsets(topic)


def _browse(
    settings: Settings,
    topic: str,
    takes: Callable[[DeadLetter], bool],
    before: Mapping[int, int],
    most: int,
    deadline: float,
) -> Browsed:
    logs = _logs(settings, topic, deadline)
    ends = {
        at: min(log.last_stable_offset, before.get(at, log.last_stable_offset)) for at, log in logs.items()
    }
    ends = {at: max(end, logs[at].log_start) for at, end in ends.items()}
    reached, back, remark = dict(ends), _FIRST, ""
    found: dict[int, list[Seen]] = {at: [] for at in logs}
    while sum(map(len, found.values())) < most and any(reached[at] > logs[at].log_start for at in logs):
        first = {at: max(log.log_start, reached[at] - back) for at, log in logs.items()}
        piece = _read(settings, topic, first, reached, logs, takes, deadline)
        if piece is None:
            remark = "There was no time to look further back: go on with the older ones."
            break
        for seen in reversed(piece):
            found[seen.letter.partition].append(seen)
        reached, back = first, min(back * _TIMES, _LARGEST)
    chosen = _newest(found)[:most]
    left = {at: [seen for seen in each if seen not in chosen] for at, each in found.items()}
    older = {at: left[at][0].letter.offset + 1 if left[at] else reached[at] for at in logs}
    if all(older[at] <= logs[at].log_start for at in logs):
        older = {}
    return Browsed(chosen, older, sum(ends[at] - reached[at] for at in logs), remark)


def _read(
    settings: Settings,
    topic: str,
    first: Mapping[int, int],
    end: Mapping[int, int],
    logs: Mapping[int, LogOffsets],
    takes: Callable[[DeadLetter], bool],
    deadline: float,
    keep: int = KEPT_BYTES,
) -> list[Seen] | None:
    """Return the letters taken between these offsets, in their order; None where there was no time for all."""
    bounded = {at: replace(log, last_stable_offset=end[at]) for at, log in logs.items()}
    letters = read_dead_letters(settings, topic, first, bounded)
    found: list[Seen] = []
    try:
        for letter in letters:
            if time.monotonic() > deadline:
                return None
            if takes(letter):
                found.append(_cut(letter, keep))
    finally:
        letters.close()
    return found


def _newest(found: Mapping[int, list[Seen]]) -> list[Seen]:
    """The letters of all partitions by time; within one always by offset, whatever the clocks of its writers were."""
    ordered: list[tuple[datetime, int, Seen]] = []
    for each in found.values():
        at = datetime.max.replace(tzinfo=UTC)
        for place, seen in enumerate(each):
            at = min(at, seen.letter.timestamp or _LONG_AGO)
            ordered.append((at, -place, seen))
    ordered.sort(key=lambda each: each[:2], reverse=True)
    return [seen for _, _, seen in ordered]


def _cut(letter: DeadLetter, keep: int) -> Seen:
    key, value = letter.key, letter.value
    headers = tuple(
        (name, None if content is None else content[:keep])
        for name, content in letter.headers[:_MOST_HEADERS]
    )
    kept = replace(
        letter,
        key=None if key is None else key[:keep],
        value=None if value is None else value[:keep],
        headers=headers,
    )
    return Seen(kept, None if key is None else len(key), None if value is None else len(value))
