"""Decide about results that are held, because it is not known whether their topic has them.

A marker that is missing, of another topic, or of a later transfer stops the rows of its source partition
(`sending.py`). Only an operator can know more. Either all that waits there is sent, also what the topic may have
already, or the transfer counts as written, and nothing more of it is sent. Source partitions without such a problem
are not touched, unless the operator gives up what they have not sent, too: the broker may refuse a record for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from confluent_kafka import KafkaError, KafkaException

from sharequeue.deadletters.outbox import Marker
from sharequeue.domain.errors import BrokerNotAvailable, InvalidRequest, ShareError, error_for
from sharequeue.domain.names import listed
from sharequeue.domain.offsets import MAX_OFFSET
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Transfer
from sharequeue.kafka.clients import portable_config
from sharequeue.kafka.topics import Topics
from sharequeue.kafka.transactions import DENIED, MarkerGroup, is_passing
from sharequeue.outputs.manifest import ELSEWHERE
from sharequeue.spark.sinks.kafka.sending import Names, found_markers, problem_of, sent_through
from sharequeue.state import State

_CLAIM = timedelta(seconds=30)
_DECIDED_AT = 0
"""An offset without metadata, which allows to send everything."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HeldSource:
    """A source partition with rows that wait."""

    topic: str
    partition: int
    rows: int
    problem: str | None
    """Why an operator has to decide; None if nothing is to be decided here."""
    through: int
    """The offset up to which the transfer was sent from here; -1: nothing was, or it is not known."""

    @property
    def is_written(self) -> bool:
        """Whether the topic has all rows that the transfer has from here."""
        return self.through >= MAX_OFFSET

    @property
    def unsent(self) -> str | None:
        """What was not sent and can be; None if there is nothing."""
        if self.problem is not None or self.is_written:
            return None
        return "nothing sent" if self.through < 0 else f"not sent after offset {self.through}"


class HeldResults:
    """The transfer of a sink that is held, and the topic to which it goes.

    Raises InvalidRequest if nothing is held, and UnknownTopicOrPartition without such a topic.
    """

    def __init__(
        self, settings: Settings, state: State, topics: Topics, group: str, sink: str, to: str
    ) -> None:
        held = [each for each in state.outputs.waiting_results([group]) if each.sink == sink]
        if not held or held[0].held_reason is None or held[0].number is None:
            raise InvalidRequest(
                f"No results of sink {sink!r} of group {group} are held, so there is nothing to decide: `sharequeue "
                "results list` shows what waits."
            )
        self.number: int = held[0].number
        self._settings, self._state, self._topics = settings, state, topics
        self._group, self._sink, self._to = group, sink, to
        self._target_id = topics.info(to).topic_id
        self._names = Names(group, sink, str(state.outputs.identity().origin_id))

    def sources(self) -> list[HeldSource]:
        """Return the source partitions whose rows wait."""
        return self._found(self._state.outputs.waiting(self._group, self._sink))

    def send_again(self) -> None:
        """Let all rows be sent that wait where the marker does not allow it."""
        undecided = [(each.topic, each.partition) for each in self.sources() if each.problem]
        # In one transaction: without the right to decide nothing changes in Kafka, and what fails there is undecided.
        with self._state.transaction() as (_, state):
            state.outputs.resume_results(self._group, self._sink, self.number, None)
            self._topics.commit_offsets(self._names.markers, dict.fromkeys(undecided, _DECIDED_AT))

    def count_as_written(self, *, also_unsent: bool = False) -> set[Place]:
        """Count the transfer as written; return its source partitions. What was acknowledged later still waits.

        Raises InvalidRequest, and changes nothing, if another process works on the transfer, and, unless
        `also_unsent`, if rows of another source partition have not been sent yet.
        """
        outputs = self._state.outputs
        found = outputs.begin_transfer(self._group, self._sink, _CLAIM)
        if found is None or found.number != self.number or found.busy:
            raise InvalidRequest(
                f"Another process works on the results of sink {self._sink} just now: look again with `sharequeue "
                "results list`."
            )
        try:
            if not also_unsent:
                self._refuse_unsent(found)
        except InvalidRequest:
            reasons = [each for each in outputs.waiting_results([self._group]) if each.sink == self._sink]
            # The claim ends, the reason stays.
            outputs.hold_transfer(self._group, self._sink, found.number, reasons[0].held_reason)
            raise
        outputs.resume_results(self._group, self._sink, found.number, f"{ELSEWHERE}kafka:{self._to}")
        return set(found.sources.values())

    def _refuse_unsent(self, found: Transfer) -> None:
        """Raise InvalidRequest if a source partition of a transfer has rows that can be sent."""
        sources = self._found(dict.fromkeys(found.sources.values(), 0))
        unsent = [f"{each.topic}-{each.partition}" for each in sources if each.unsent]
        if unsent:
            raise InvalidRequest(
                f"Rows of {listed(unsent)} have not been sent to {self._to}, and their marker allows it: run the "
                "group first, so that only those are left that are to be decided. If they cannot be sent, "
                "--also-unsent gives them up."
            )

    def _found(self, rows: Mapping[Place, int]) -> list[HeldSource]:
        try:
            with MarkerGroup(portable_config(self._settings), self._names.markers) as markers:
                there = dict(zip(rows, found_markers(markers, [*rows]), strict=True))
        except KafkaException as error:
            raise _unreadable(self._names.markers, error.args[0]) from error
        return list(self._with_markers(there, sorted(rows.items())))

    def _with_markers(
        self, there: Mapping[Place, Marker | None], rows: Iterable[tuple[Place, int]]
    ) -> Iterable[HeldSource]:
        for at, count in rows:
            marker = there[at]
            problem = problem_of(marker, self._to, self._target_id, self.number)
            yield HeldSource(
                *at, count, problem, sent_through(marker, self.number) if problem is None else -1
            )


def _unreadable(markers: str, cause: KafkaError) -> ShareError:
    said = f"The markers of group {markers} cannot be read ({cause.str()})"
    if is_passing(cause):
        return BrokerNotAvailable(f"{said}: try again.")
    remedy = (
        "grant READ on this group, and on the topics from which the rows came"
        if cause.code() in DENIED
        else "see the broker's log"
    )
    return error_for(int(cause.code()), f"{said}: {remedy}.")
