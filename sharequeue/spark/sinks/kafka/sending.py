"""Send the records of a transfer from Spark's tasks, each source partition exactly once.

This module runs in Python workers. A task has the rows of a source partition, by offset, and sends them as one
batch of the outbox (`sharequeue.deadletters.outbox`), whose number is that of the transfer. Its producer fences an
earlier attempt, also one of another process; the marker shows how far that one came. The marker alone decides whether
the batch may be sent:

- of an earlier transfer: nothing of this one is written;
- of this one: what follows `through` is missing;
- of a later one: this one has ended, and its process has not noticed yet; or the state was restored (`OVERTAKEN`);
- none, or one of another topic of that name: an operator decides (`LOST`, `RECREATED`), and sets an offset without
  metadata if the batch is to be sent. The sink commits a first marker before it acknowledges the first rows of a
  source partition.

If the sink had a topic of another name before, the marker counts as well: that topic has what was sent to it, and
what is missing goes to the new one.

An error is a row of the report, not an exception: other tasks go on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any
from urllib.parse import quote

import confluent_kafka as kafka
import pyarrow as pa
from pyarrow import compute
from pyarrow.json import ParseOptions, read_json
from pyspark.cloudpickle import register_pickle_by_value

from sharequeue.deadletters import outbox
from sharequeue.deadletters.outbox import NOW, BatchStep, Fenced, Marker, Outbox, Record
from sharequeue.domain import offsets, record_bytes
from sharequeue.domain.offsets import MAX_OFFSET, OffsetSet
from sharequeue.kafka import transactions
from sharequeue.kafka.headers import Header
from sharequeue.kafka.transactions import FENCED as FENCED_CODES
from sharequeue.kafka.transactions import MarkedProducer, MarkerGroup, takes_commits

FENCED, OVERTAKEN, REFUSED = "fenced", "overtaken by a later transfer", "refused"
LOST, RECREATED = "marker lost", "topic created again"
"""Why a task has not sent all its records: the problems in its report."""

REPORT = "topic string, partition int, records long, problem string, code int, reason string"
_REPORT = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("problem", pa.string()),
        ("code", pa.int32()),
        ("reason", pa.string()),
    ]
)
_ALL = OffsetSet.of((0, MAX_OFFSET + 1))
"""A batch has the records of these offsets that are in its files: the marker shows up to which it is written."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names under which the results of a sink are sent."""

    group: str
    sink: str
    origin_id: str
    """The state's id, because two deployments may have the same group id."""

    @property
    def prefix(self) -> str:
        """How all names of the group begin. The client refuses to commit offsets for a consumer group that is not
        printable ASCII: such a name is URL-encoded, after a prefix that no other has.
        """
        if self._is_plain:
            return f"sharequeue.results.{self.group}."
        return f"sharequeue.results-encoded.{quote(self.group, safe='')}."

    @property
    def markers(self) -> str:
        """The consumer group of the markers. Group and sink may have dots: those of the sink are encoded, so that no
        other two have the same one.
        """
        sink = self.sink.replace("%", "%25") if self._is_plain else quote(self.sink, safe="")
        return f"{self.prefix}{sink.replace('.', '%2E')}.{self.origin_id}"

    def transactional_id(self, topic: str, partition: int) -> str:
        """Return the id for a source partition. No topic has a colon."""
        return f"{self.markers}:{topic}-{partition}"

    @property
    def _is_plain(self) -> bool:
        return takes_commits(self.group + self.sink)


@dataclass(frozen=True, slots=True)
class TransferToSend:
    """What a task has to know to send the records of a transfer."""

    client: Mapping[str, Any]
    """The configuration of a Kafka client, for any machine."""
    names: Names
    target: str
    target_id: str
    producer: Mapping[str, Any]
    number: int
    """The transfer's number."""
    headers: tuple[str, str, str, str] | None
    """The names of the headers for topic, partition, offset and lease of a record's source; None: without them."""


class Problem(Exception):
    """Why a source partition's records cannot be sent."""

    def __init__(self, problem: str, error: kafka.KafkaError | None = None) -> None:
        super().__init__(problem if error is None else error.str())
        self.problem, self.error = problem, error


@dataclass(frozen=True, slots=True)
class _TransferBatch:
    sequence: int
    identity: str
    offsets: OffsetSet = _ALL
    is_new: bool = False


class TopicSender:
    """A function that sends batches of rows (`topic, partition, offset, lease_id`, and the parts of a record), and
    yields a report for each source partition."""

    def __init__(
        self, sending: TransferToSend, on_step: Callable[[BatchStep], None] = lambda step: None
    ) -> None:
        self.sending = sending
        self.on_step = on_step

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send all rows, one source partition after the other. Raises ValueError if its rows are not together."""
        done = set[tuple[str, int]]()
        for place, rows in groupby(_by_source(batches), key=itemgetter(0)):
            if place in done:
                raise ValueError(f"the rows of {place[0]}-{place[1]} are not together in their task")
            done.add(place)
            topic, partition = place
            yield self._sent(topic, partition, (batch for _, batch in rows))

    def _sent(self, topic: str, partition: int, rows: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """Send the rows of one source partition; return the report."""
        results = _Results(self.sending, topic, partition, rows)
        problem, error = None, None
        try:
            with MarkerGroup(self.sending.client, self.sending.names.markers) as markers:
                results.markers = markers
                for _ in Outbox(self.sending.client, results, markers, self.on_step).write():
                    pass
        except Fenced:
            problem = FENCED
        except Problem as found:
            problem, error = found.problem, found.error
        except kafka.KafkaException as found:
            problem, error = REFUSED, found.args[0]
        return _report(
            topic=topic,
            partition=partition,
            records=results.sent,
            problem=problem,
            code=None if error is None else error.code(),
            reason=None if error is None else error.str(),
        )


def _report(**columns: Any) -> pa.RecordBatch:
    """Return a row of the report. Arrays that PyArrow makes of Python's values, or for NumPy, import pandas, which
    would be half of the work of a new Python worker with some thousand records.
    """
    row = BytesIO(json.dumps(columns).encode())
    (batch,) = read_json(row, parse_options=ParseOptions(explicit_schema=_REPORT)).to_batches()
    return batch


def _by_source(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    """Divide batches where the source partition changes.

    Spark may give a task the rows of several, one after the other: a union of frames that have one partition each can
    have one partition, too.
    """
    for batch in batches:
        runs = [compute.run_end_encode(batch[name]).run_ends for name in ("topic", "partition")]
        for first, end in pairwise([0, *sorted({end for ends in runs for end in ends.to_pylist()})]):
            rows = batch.slice(first, end - first)
            yield (rows["topic"][0].as_py(), rows["partition"][0].as_py()), rows


class _Results:
    """The results of one source partition: an `OutboxSource` with one batch."""

    def __init__(
        self, sending: TransferToSend, topic: str, partition: int, rows: Iterator[pa.RecordBatch]
    ) -> None:
        self._sending, self._rows = sending, rows
        self._left: list[_TransferBatch] = [_TransferBatch(sending.number, str(sending.number))]
        self.markers: MarkerGroup | None = None
        self.sent = 0
        self.place = topic, partition
        self.transactional_id = sending.names.transactional_id(topic, partition)
        self.producer = sending.producer

    def open(self) -> _TransferBatch | None:
        """Return the batch, once. Raises if the marker forbids to send it: another producer has been fenced."""
        if not self._left:
            return None
        batch, found = self._left.pop(), found_marker(self.markers, self.place)
        problem = problem_of(found, self._sending.target, self._sending.target_id, batch.sequence)
        if problem is not None:
            raise Problem(problem)
        return batch

    def marker(self, batch: _TransferBatch) -> Marker:
        """Return the marker of the batch."""
        return Marker(batch.sequence, batch.identity, self._sending.target, self._sending.target_id)

    def written(self, batch: _TransferBatch) -> OffsetSet:
        """Raise: the marker was there a moment ago."""
        raise Problem(LOST)

    def part(self, batch: _TransferBatch, written: Callable[[], OffsetSet]) -> _TransferBatch:
        """Return the whole batch: its records are sent in the order of offsets."""
        return batch

    def refused(self, batch: _TransferBatch, reasons: Mapping[int, kafka.KafkaError]) -> None:
        """Raise why the broker refuses a record: it was acknowledged, so it is not left out."""
        raise Problem(REFUSED, next(iter(reasons.values())))

    def close(self, batch: _TransferBatch) -> int:
        """Return the number of records."""
        return self.sent

    def failure(self, error: kafka.KafkaException) -> Exception:
        """Return `Fenced` if another producer has taken over."""
        cause = error.args[0]
        return Fenced(cause.str()) if cause.code() in FENCED_CODES else Problem(REFUSED, cause)

    def records(self, batch: _TransferBatch, wanted: OffsetSet) -> Iterator[Record]:
        """Yield the records from the first wanted offset on."""
        for rows in self._rows:
            yield from self._of(rows, wanted.first)

    def _of(self, rows: pa.RecordBatch, first: int) -> Iterator[Record]:
        target, names = self._sending.target, self._sending.headers
        fixed: list[Header] = []
        if names is not None:
            topic, partition = self.place
            fixed = [(names[0], topic.encode()), (names[1], b"%d" % partition)]
        columns = ("offset", "lease_id", "key", "value", "headers", "to_partition", "timestamp")
        for offset, lease_id, key, value, given, at, timestamp in zip(
            *(rows[name].to_pylist() for name in columns), strict=True
        ):
            if offset < first:
                continue
            headers = [(each["key"], each["value"]) for each in given] if given else []
            if names is not None:
                headers += [*fixed, (names[2], b"%d" % offset), (names[3], b"%d" % lease_id)]
            size = len(key or b"") + len(value or b"") + 32 * (1 + len(headers))
            size += sum(len(name) + len(content or b"") for name, content in headers)
            self.sent += 1
            yield offset, target, at, key, value, headers, size, timestamp or NOW


def found_marker(markers: MarkerGroup | None, place: tuple[str, int]) -> Marker | None:
    """Return the marker of a source partition; None if there is none."""
    assert markers is not None  # noqa: S101 - set before the outbox begins
    return found_markers(markers, [place])[0]


def found_markers(markers: MarkerGroup, places: Sequence[tuple[str, int]]) -> list[Marker | None]:
    """Return the markers of source partitions, in one request."""
    return [Marker.parse(each) for each in markers.committed_of(places)]


def problem_of(found: Marker | None, target: str, target_id: str, number: int) -> str | None:
    """Return why a marker forbids to send a transfer of this number to a topic; None if it does not."""
    if found is None:
        return LOST
    # An offset without our metadata was set by an operator, who has decided that the batch is sent.
    if found.batch and found.topic == target and found.topic_id != target_id:
        return RECREATED
    return OVERTAKEN if found.sequence > number else None


def sent_through(found: Marker | None, number: int) -> int:
    """Return the offset up to which a marker shows that the transfer of this number was sent; -1: nothing was."""
    return found.through if found is not None and found.is_of(_TransferBatch(number, str(number))) else -1


def commit_first_marker(sending: TransferToSend, topic: str, partition: int, may: Callable[[], bool]) -> None:
    """Commit a first marker for a source partition that has none, so that a missing one means that it was lost.

    Nothing is committed if `may`, which is asked after an earlier producer was fenced, returns False. Raises `Fenced`
    and `Problem`.
    """
    results = _Results(sending, topic, partition, iter(()))
    config = {**sending.client, **sending.producer}
    with (
        MarkerGroup(sending.client, sending.names.markers) as markers,
        MarkedProducer(config, results.transactional_id, markers, results.failure) as producer,
    ):
        if found_marker(markers, results.place) is not None or not may():
            return
        producer.begin()
        marker = Marker(0, "0", sending.target, sending.target_id)
        producer.mark(marker.committed_at(*results.place))
        producer.commit()


# These modules are sent to the executors by value: they need PyArrow and confluent-kafka, but not this package.
for _module in (sys.modules[__name__], outbox, transactions, offsets, record_bytes):
    register_pickle_by_value(_module)  # type: ignore[no-untyped-call]
