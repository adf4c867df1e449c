"""The topic that results go to: what the broker says of it, and why it cannot take the results of a sink."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sharequeue.domain.errors import BrokerNotAvailable, ShareError
from sharequeue.domain.names import listed, plural, topic_name_problem
from sharequeue.kafka.topics import Topics
from sharequeue.kafka.transactions import DEFAULT_MAX_MESSAGE_BYTES, most_uncompressed
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.kafka.records import TargetTopic

_NO_LIMIT = 2**63 - 1


class TargetUnknown(SinkRefused):
    """The topic does not exist, or it may not be described."""


def target_of(
    topics: Topics, name: str, subjects: Mapping[str, str | None], *, keyed: bool, timed: bool
) -> TargetTopic:
    """Return the topic as the broker describes it. Raises SinkRefused if it cannot take the results, as
    TargetUnknown if it is not there or may not be described, and BrokerNotAvailable.

    `subjects` are those of key and value in the registry. Records are `keyed` if a column has their key, and `timed`
    if one has their timestamp.
    """
    if problem := topic_name_problem(name):
        raise SinkRefused(f"{name!r} cannot be the name of a topic: {problem}.")
    try:
        info = topics.describe([name]).get(name)
        if info is None:
            raise TargetUnknown(f"there is no topic {name}: create it first.")
        given = topics.configs(name)
    except BrokerNotAvailable:
        raise
    except ShareError as error:
        raise TargetUnknown(
            f"topic {name} cannot be described ({error.message}): grant DESCRIBE and DESCRIBE_CONFIGS on it."
        ) from error
    compacted = "compact" in given.get("cleanup.policy", "delete").split(",")
    if compacted and not keyed:
        raise SinkRefused(f"topic {name} is compacted and takes no record without a key: set `key`.")
    _refuse_too_few_replicas(name, info.replicas, given)
    refuse_validated(name, subjects, given)
    if timed:
        _refuse_old_timestamps(name, given)
    return TargetTopic(
        *(name, info.topic_id, info.partitions),
        max_message_bytes=int(given.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES)),
        compacted=compacted,
        most_bytes=most_uncompressed(given),
        latest_ms=latest_ms(given),
        compression=given.get("compression.type", "producer"),
    )


def refuse_validated(name: str, subjects: Mapping[str, str | None], given: Mapping[str, str]) -> None:
    """Raise SinkRefused for a topic whose broker takes only keys or values with a schema, if they have none."""
    for part, subject in subjects.items():
        config = f"confluent.{part}.schema.validation"
        if subject is None and given.get(config) == "true":
            raise SinkRefused(
                f"topic {name} has {config}=true, so its broker takes no {part} without a schema: set "
                f"`{part}_subject`."
            )


def _refuse_too_few_replicas(name: str, replicas: int, given: Mapping[str, str]) -> None:
    if (needed := int(given.get("min.insync.replicas", "1"))) > replicas:
        raise SinkRefused(
            f"topic {name} has a partition with {plural(replicas, 'replica')}, and its min.insync.replicas is "
            f"{needed}, so it takes no record: lower min.insync.replicas, or give the partitions more replicas."
        )


def smaller_than(topics: Topics, inputs: Collection[str], target: TargetTopic) -> str | None:
    """Return that the topic takes only smaller records than an input; the handler may make them smaller."""
    limits = {
        name: int(given.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
        for name, given in topics.configs_of(inputs).items()
    }
    larger = [name for name, most in sorted(limits.items()) if most > target.max_message_bytes]
    if not larger:
        return None
    return (
        f"max.message.bytes of {listed(larger)} is larger than that of {target.name}: a record whose result is larger"
        f" than {target.max_message_bytes:,} bytes is rejected"
    )


def latest_ms(given: Mapping[str, str]) -> int | None:
    """Return how far a timestamp may be in the future, by the configs of a topic; None: without a limit."""
    later = int(given.get("message.timestamp.after.max.ms", _NO_LIMIT))
    return later if _keeps_timestamps(given) and later != _NO_LIMIT else None


def _keeps_timestamps(given: Mapping[str, str]) -> bool:
    """Return whether records have the timestamps of their producers: the broker checks only these."""
    return given.get("message.timestamp.type", "CreateTime") == "CreateTime"


def _refuse_old_timestamps(name: str, given: Mapping[str, str]) -> None:
    earlier = given.get("message.timestamp.before.max.ms", given.get("message.timestamp.difference.max.ms"))
    if _keeps_timestamps(given) and earlier is not None and int(earlier) != _NO_LIMIT:
        raise SinkRefused(
            f"topic {name} refuses records whose timestamp is older than {earlier} ms, and a record that waits gets "
            "older: leave out `timestamp`, or remove the limit message.timestamp.before.max.ms of the topic."
        )
