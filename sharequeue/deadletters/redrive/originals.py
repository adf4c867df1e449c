"""Read the source records of letters that have no whole copy of them.

A letter has none if its group makes no copies, or if the copy was too large for the dead-letter topic. The copy of a
broker's own share group has key and value, without the record's headers: it is used only if the record is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from confluent_kafka import KafkaException, Message

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.redrive.batches import RedriveBatches
from sharequeue.deadletters.redrive.selection import LetterPosition
from sharequeue.domain.names import is_topic_name
from sharequeue.domain.offsets import OffsetSet
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import Topics
from sharequeue.kafka.transactions import is_passing

Original: TypeAlias = DeadLetter | str | None
"""What has a letter's record: the letter itself if it is a whole copy, else the record in its source, else the letter
if it has key or value. Or the reason why the source cannot be read; None if there is nothing to send."""


@dataclass(slots=True)
class Originals:
    """Reads the originals of letters."""

    batches: RedriveBatches
    topics: Topics
    reader: RecordReader
    topic_ids: dict[str, str] = field(default_factory=dict)
    """The sources that were read, with their ids: what was read holds if they have the same ones afterwards."""

    def of(self, letters: Iterable[DeadLetter]) -> Iterator[tuple[DeadLetter, Original]]:
        """Yield each letter with its original; the letters are in the order of their sources.

        A source is read as its letters are taken, so that few large records are in memory. Raises KafkaException and
        `BrokerNotAvailable` for what may pass.
        """
        for (topic, partition), some in groupby(letters, key=lambda letter: LetterPosition.of(letter)[:2]):
            of_source = list(some)
            offsets = {
                at.source_offset
                for each in of_source
                if not each.is_copy and (at := LetterPosition.of(each)).topic
            }
            wanted = OffsetSet.from_offsets(offset for offset in offsets if offset >= 0)
            records: Iterator[Message] = iter(())
            if wanted and partition >= 0 and (found := sources(self.batches, self.topics, {topic})):
                self.topic_ids.setdefault(topic, found[topic])
                records = self.reader.read(topic, partition, wanted)
            yield from _paired(of_source, records)


def _paired(letters: list[DeadLetter], records: Iterator[Message]) -> Iterator[tuple[DeadLetter, Original]]:
    """Yield the letters of one source partition with their records, both ascending."""
    original, refusal = None, None
    for letter in letters:
        if letter.is_copy:
            yield letter, letter
            continue
        wanted = LetterPosition.of(letter).source_offset
        try:
            while refusal is None and (original is None or original.offset < wanted):
                if (message := next(records, None)) is None:
                    break
                original = DeadLetter.of(message)
        except KafkaException as error:
            if is_passing(error.args[0]):
                raise
            refusal = f"its record in {letter.source_topic} cannot be read ({error.args[0].str()}): grant READ on it"
        if original is not None and original.offset == wanted:
            # A record of a damaged batch has a problem, and nothing else.
            damaged = original.problem is not None and not original.headers
            yield letter, f"its record cannot be read: {original.problem}" if damaged else original
        elif refusal is None and letter.has_content:
            yield letter, letter
        else:
            yield letter, refusal


def sources(batches: RedriveBatches, topics: Topics, names: Iterable[str]) -> dict[str, str]:
    """Return the ids of those topics that are still the ones that letters name.

    One that was deleted or created again since is left out: it holds other records.
    """
    there = topics.describe(filter(is_topic_name, names))
    return {name: info.topic_id for name, info in there.items() if batches.is_source(name, info.topic_id)}
