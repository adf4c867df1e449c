"""Pages of dead letters, newest first.

A dead-letter topic is read backwards from its ends, in small steps, for some seconds at most; of large records only
the beginning is kept. The next page begins where the reading stopped. `reading` reads a topic forwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import BoundedSemaphore, Thread
from types import MappingProxyType

from sharequeue.deadletters.hidden import hidden_records
from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.domain.errors import ShareError, UnknownTopicOrPartition
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import LogOffsets, Topics

SECONDS = 3.0
"""How long a topic is read for one page."""
KEPT_BYTES, KEPT_BYTES_OF_ONE = 4_096, 65_536
"""The bytes kept of each key, value and header: in a list of letters, and for a single letter."""
_MOST_HEADERS = 100
_FIRST, _TIMES, _LARGEST = 5, 4, 5_000
"""The number of offsets of each partition in the first step, and the factor for each next step."""
_LATEST = 2**63

_LATE = "Reading the topic took longer than {:g} s."

_readers = BoundedSemaphore(2)
"""A client that waits for a broker cannot be interrupted: the maximum number of clients that may wait."""


@dataclass(frozen=True, slots=True)
class ShownLetter:
    """A dead letter with long parts cut, and the lengths of key and value. None is null."""

    letter: DeadLetter
    key_bytes: int | None
    value_bytes: int | None


@dataclass(slots=True)
class Browsed:
    """Dead letters, newest first; and the reason if not all were found."""

    letters: list[ShownLetter] = field(default_factory=list)
    older: dict[int, int] = field(default_factory=dict)
    """The end offsets of the next older page, by partition; empty if there is nothing older."""
    offsets: int = 0
    """The number of offsets that were read."""
    remark: str = ""
    topic_id: str = ""
    """The id of the topic that was read; empty if there is none."""


def browse(
    settings: Settings,
    topic: str,
    takes: Callable[[DeadLetter], bool],
    *,
    before: Mapping[int, int] = MappingProxyType({}),
    most: int = 20,
    seconds: float = SECONDS,
) -> Browsed:
    """Return the newest selected letters before the given offsets. Raises nothing: if there are no more, the remark
    has the reason."""
    return _within(seconds, lambda deadline: _browse(settings, topic, takes, before, most, deadline))


def letter_at(
    settings: Settings, topic: str, partition: int, offset: int, seconds: float = SECONDS
) -> Browsed:
    """Return the letter at an offset, if there is one. Raises nothing, like `browse`."""

    def look(deadline: float) -> Browsed:
        topic_id, logs = _logs(settings, topic, deadline)
        if (
            partition not in logs
            or not logs[partition].log_start <= offset < logs[partition].last_stable_offset
        ):
            return Browsed()
        one, end = {partition: offset}, {partition: offset + 1}
        only = {partition: logs[partition]}
        found = _read(settings, topic, one, end, only, lambda letter: True, deadline, KEPT_BYTES_OF_ONE)
        remark = "" if found is not None else _LATE.format(seconds)
        return Browsed(found or [], remark=remark, topic_id=topic_id)

    return _within(seconds, look)


def _within(seconds: float, look: Callable[[float], Browsed]) -> Browsed:
    deadline = time.monotonic() + seconds
    if not _readers.acquire(timeout=seconds):
        return Browsed(remark="Too many requests are reading dead letters now. Try again in a moment.")
    found = Browsed(remark=_LATE.format(seconds))

    def work() -> None:
        nonlocal found
        try:
            found = look(deadline)
        except UnknownTopicOrPartition:
            # Without similar names: the caller may not be allowed to see them.
            found = Browsed(remark="There is no topic of this name on the broker, or it is not visible yet.")
        except ShareError as error:
            found = Browsed(remark=error.message)
        except Exception as error:  # an error of the client: it is in the remark
            found = Browsed(remark=f"The topic could not be read: {error}")
        finally:
            _readers.release()

    thread = Thread(target=work, name="sharequeue-browse", daemon=True)
    thread.start()
    thread.join(seconds + 0.5)
    return found


def _logs(settings: Settings, topic: str, deadline: float) -> tuple[str, dict[int, LogOffsets]]:
    """Return the topic's id, and its logs."""
    with Topics(settings, max(0.1, deadline - time.monotonic() - 0.3)) as topics:
        return topics.info(topic).topic_id, topics.offsets(topic)


def _browse(
    settings: Settings,
    topic: str,
    takes: Callable[[DeadLetter], bool],
    before: Mapping[int, int],
    most: int,
    deadline: float,
) -> Browsed:
    topic_id, logs = _logs(settings, topic, deadline)
    ends = {
        at: min(log.last_stable_offset, before.get(at, log.last_stable_offset)) for at, log in logs.items()
    }
    ends = {at: max(end, logs[at].log_start) for at, end in ends.items()}
    reached, back, remark = dict(ends), _FIRST, ""
    found: dict[int, list[ShownLetter]] = {at: [] for at in logs}
    while sum(map(len, found.values())) < most and any(reached[at] > logs[at].log_start for at in logs):
        first = {at: max(log.log_start, reached[at] - back) for at, log in logs.items()}
        piece = _read(settings, topic, first, reached, logs, takes, deadline)
        if piece is None:
            remark = "The time was too short to read further back: continue with the older letters."
            break
        for seen in reversed(piece):
            found[seen.letter.partition].append(seen)
        reached, back = first, min(back * _TIMES, _LARGEST)
    chosen = _newest(found)[:most]
    left = {at: [seen for seen in each if seen not in chosen] for at, each in found.items()}
    older = {at: left[at][0].letter.offset + 1 if left[at] else reached[at] for at in logs}
    if all(older[at] <= logs[at].log_start for at in logs):
        older = {}
    if not before:
        remark = " ".join(
            filter(None, (remark, *(f"{each}." for each in hidden_records(settings, topic, logs))))
        )
    return Browsed(chosen, older, sum(ends[at] - reached[at] for at in logs), remark, topic_id)


def _read(
    settings: Settings,
    topic: str,
    first: Mapping[int, int],
    end: Mapping[int, int],
    logs: Mapping[int, LogOffsets],
    takes: Callable[[DeadLetter], bool],
    deadline: float,
    keep: int = KEPT_BYTES,
) -> list[ShownLetter] | None:
    """Return the selected letters between these offsets, in order; None if there was no time for all."""
    letters = read_dead_letters(settings, topic, first, logs, end)
    found: list[ShownLetter] = []
    try:
        for letter in letters:
            if time.monotonic() > deadline:
                return None
            if takes(letter):
                found.append(_cut(letter, keep))
    finally:
        letters.close()
    return found


def _newest(found: Mapping[int, list[ShownLetter]]) -> list[ShownLetter]:
    """Return the letters of all partitions, newest first.

    Within a partition they are ordered by offset, because the clocks of its writers may differ.
    """
    ordered: list[tuple[int, int, ShownLetter]] = []
    for each in found.values():
        at = _LATEST
        for place, seen in enumerate(each):
            at = min(at, -1 if seen.letter.written_ms is None else seen.letter.written_ms)
            ordered.append((at, -place, seen))
    ordered.sort(key=lambda each: each[:2], reverse=True)
    return [seen for _, _, seen in ordered]


def _cut(letter: DeadLetter, keep: int) -> ShownLetter:
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
    return ShownLetter(kept, None if key is None else len(key), None if value is None else len(value))
