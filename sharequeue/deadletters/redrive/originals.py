"""Read the source records of letters that have no whole copy of them.

A letter has none if its group makes no copies, or if the copy was too large for the dead-letter topic. The copy of a
broker's own share group has key and value, without the record's headers: it is used only if the record is gone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
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
            without_copy = {
                at for each in of_source if not each.is_copy and (at := LetterPosition.of(each)).topic
            }
            there = with_records(self.batches, self.topics, without_copy)
            wanted = OffsetSet.from_offsets(
                sorted({at.source_offset for at in there if at.source_offset >= 0})
            )
            records: Iterator[Message] = iter(())
            if wanted and partition >= 0:
                self.topic_ids.setdefault(topic, next(iter(there.values())))
                records = self.reader.read(topic, partition, wanted)
            yield from _paired(of_source, there, records)


def _paired(
    letters: list[DeadLetter], there: Container[LetterPosition], records: Iterator[Message]
) -> Iterator[tuple[DeadLetter, Original]]:
    """Yield the letters of one source partition with their records, both ascending."""
    original, refusal = None, None
    for letter in letters:
        at = LetterPosition.of(letter)
        if letter.is_copy or at not in there:
            yield letter, letter if letter.is_copy or letter.has_content else None
            continue
        wanted = at.source_offset
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


def with_records(
    batches: RedriveBatches, topics: Topics, letters: Iterable[LetterPosition]
) -> dict[LetterPosition, str]:
    """Return those of the letters whose source topic is still the one with their records, with the topic's id.

    One that was deleted or created again since holds other records. A letter of a broker has no topic id: its topic
    is taken for the same one if no share group knows it under another id.
    """
    wanted = list(letters)
    there = topics.describe({at.topic for at in wanted if is_topic_name(at.topic)})
    known = {at.topic for at in wanted if at.topic_id is None and at.topic in there}
    known = {name for name in known if batches.is_source(name, there[name].topic_id)}
    return {
        at: info.topic_id
        for at in wanted
        if (info := there.get(at.topic))
        and (at.topic in known if at.topic_id is None else at.topic_id == info.topic_id)
    }
