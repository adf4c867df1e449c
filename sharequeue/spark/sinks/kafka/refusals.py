"""Why a topic has not taken rows or a marker, and what an operator does about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.names import plural
from sharequeue.kafka.transactions import DENIED, TRANSACTION_TIMEOUT_MS, is_passing
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.kafka.sending import LOST, OVERTAKEN, RECREATED, Names

_SIZE = "raise max.message.bytes of the topic to what it was when the records were acknowledged"
_REMEDIES: Mapping[int, str] = {
    KafkaError.MSG_SIZE_TOO_LARGE: _SIZE,
    KafkaError.RECORD_LIST_TOO_LARGE: _SIZE,
    KafkaError.INVALID_RECORD: "check what the topic requires of records, for example a key if it is compacted, and "
    "the broker's log",
    KafkaError.INVALID_TIMESTAMP: "check message.timestamp.before.max.ms and message.timestamp.after.max.ms of the "
    "topic",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic again",
    KafkaError._UNKNOWN_TOPIC: "create the topic again",
    KafkaError._UNKNOWN_PARTITION: "give the topic as many partitions as when the records were acknowledged",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "set transaction.max.timeout.ms of the brokers to at least "
    f"{TRANSACTION_TIMEOUT_MS}",
}
_OF_A_COORDINATOR = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)


@dataclass(frozen=True, slots=True)
class Refusals:
    """The texts for a topic that a sink writes to."""

    topic: str
    names: Names

    def no_marker(self, error: KafkaError) -> Exception:
        """Return the error of a round whose first markers the broker does not take."""
        if is_passing(error):
            return BrokerNotAvailable(
                f"{error.str()}. Nothing of the round was acknowledged; try again.{_if_it_stays(error)}"
            )
        return SinkRefused(
            f"the broker takes no marker for results ({error.str()}): {self._remedy(error)}. Nothing of the round "
            "was acknowledged."
        )

    def _remedy(self, error: KafkaError) -> str:
        """Return what to do about a refusal of the broker."""
        if error.code() not in DENIED:
            return _REMEDIES.get(error.code(), "see the broker's log")
        return (
            f"grant WRITE on topic {self.topic} and on transactional ids that begin with "
            f"`{self.names.prefix}`, and READ on the group's topics and on group "
            f"`{self.names.markers}`"
        )

    def _resume(self) -> str:
        """Return the command with which an operator decides what becomes of the rows."""
        names = self.names
        return f"`sharequeue results resume --group {names.group} --sink {names.sink} --to {self.topic}`"

    def give_up(self) -> str:
        """Return the command that counts unsent rows as sent."""
        return (
            f"give up what was not sent of this transfer: {self._resume()} with --count-as-written "
            "--also-unsent."
        )

    def _decide(self) -> str:
        return f"Decide whether they are sent all the same: {self._resume()}."

    def reason(self, held: Sequence[Any]) -> str:
        """Return why source partitions could not be sent, and what to do."""
        first, name = held[0], self.topic
        more = f" (and {plural(len(held) - 1, 'other partition')})" if len(held) > 1 else ""
        place = f"{first['topic']}-{first['partition']}{more}"
        if first["problem"] == LOST:
            return (
                f"the marker of {place} in group {self.names.markers} is missing, so that what {name} already has is "
                "not known: the group was deleted, or nothing was sent for longer than the broker's "
                f"offsets.retention.minutes. {self._decide()}"
            )
        if first["problem"] == OVERTAKEN:
            return (
                f"the marker of {place} in group {self.names.markers} is of a later transfer than Postgres knows: "
                f"the database was restored from a backup, or its clock was set back. {self._decide()}"
            )
        if first["problem"] == RECREATED:
            return (
                f"topic {name} was deleted and created again since results of {place} were sent to it: what was "
                f"there is lost. {self._decide()}"
            )
        error, said = KafkaError(first["code"]), first["reason"]
        if is_passing(error):
            return (
                f"the broker does not take the records of {place} ({said}): the next round or run tries again."
                f"{_if_it_stays(error)}"
            )
        refused = f"the broker refuses the records of {place} ({said}): {self._remedy(error)}."
        if error.code() in DENIED:
            return refused
        return f"{refused} If it never takes them, {self.give_up()}"


def _if_it_stays(error: KafkaError) -> str:
    """Return what may hide behind a coordinator that does not respond for long."""
    if error.code() not in _OF_A_COORDINATOR:
        return ""
    return (
        " If it stays so, the broker may have no place for transactions: one broker alone needs "
        "transaction.state.log.replication.factor=1 and transaction.state.log.min.isr=1. Or a transaction hangs: "
        "`kafka-transactions.sh find-hanging`."
    )
