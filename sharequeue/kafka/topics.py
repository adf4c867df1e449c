"""Topics as the broker has them: ids, partitions, log starts and log ends.

The only module that asks Kafka for metadata. Every request has a time limit and ends in a result or in an
error of `errors`: `BrokerNotAvailable` if no broker responds, which is different from a topic that does not
exist. The coordinator decides what follows from a result (initialising, moving the SPSO, marking a topic
deleted). Log ends are read as Kafka's share coordinator reads them: the high watermark for lag, the last
stable offset for read_committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from sharequeue.domain.errors import (
    BrokerNotAvailable,
    InvalidTopic,
    LeaderNotAvailable,
    ShareError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    error_for,
)
from sharequeue.domain.names import nearest, topic_name_problem
from sharequeue.kafka.broker_client import BrokerClient, connection_broke

_log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""How long to wait, after writing in transactions, until the records are visible."""
_SETTLED_SECONDS = 0.01
_LED_SECONDS = 0.05
ASKED_AT_ONCE = 1_000
"""Names in one request. Kafka's client takes 60 ms for this many unknown names, but 40 s for a hundred thousand; and
no other thread runs while it returns the result."""
_WITHOUT_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The topic id that a broker without topic ids returns."""
_NO_TOPIC = "?"
"""A name that no topic can have, so that a request for it does not create one."""
_NO_TOPIC_IDS = (
    "This broker has no topic ids: without them, a topic that was deleted and created again looks like the "
    "old one. Kafka has them since 2.8, unless `inter.broker.protocol.version` is older: upgrade the "
    "cluster."
)
_SPEC: Any = OffsetSpec  # has no types
_EARLIEST, _LATEST = _SPEC.earliest(), _SPEC.latest()

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the broker knows it: the id changes when a topic is deleted and created again."""

    topic_id: str
    partitions: int
    leaderless: frozenset[int] = field(default=frozenset(), compare=False)
    """The partitions without a leader at that moment. A request for their offsets would wait for one until its time
    limit."""
    replicas: int = field(default=0, compare=False)
    """How many replicas the partition with the fewest has."""

    @property
    def led(self) -> list[int]:
        """The partitions that had a leader."""
        return [partition for partition in range(self.partitions) if partition not in self.leaderless]


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Where a partition's log starts and ends; both ends exclusive, the stable one for read_committed."""

    log_start: int
    log_end: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class TopicsFound:
    """The broker's result for some topics. Topics in neither mapping do not exist."""

    known: Mapping[str, TopicInfo]
    refused: Mapping[str, ShareError]
    """Topics that the broker or the rules for names refuse, with the error."""


def is_same(now: Mapping[str, TopicInfo], name: str, topic_id: str) -> bool:
    """Return whether a topic exists now with this id: it was neither deleted nor created again since."""
    return name in now and now[name].topic_id == topic_id


class Topics(BrokerClient):
    """Requests to one Kafka cluster, over one client that is made when it is first needed.

    `timeout` is the longest time for any one request, in seconds. `token` returns tokens, as confluent-kafka's
    `oauth_cb` does, if the settings do not define how to get them. May be used from several threads. The client is
    made again when a file with its password, key or certificates has changed.
    """

    def cluster(self) -> tuple[str, int]:
        """Return the id of the cluster at the address, and how many brokers it has. Raises `BrokerNotAvailable`."""
        # Not with describe_cluster: if all brokers are fenced for a moment, an assertion in librdkafka 2.16 ends the
        # whole process. With the metadata of one topic, so that not all topics are listed.
        try:
            found = self._admin().list_topics(_NO_TOPIC, timeout=self._timeout)
        except KafkaException as error:
            raise self._unavailable(error.args[0].str()) from error
        if not found.cluster_id:
            raise self._unavailable("the broker does not know its cluster yet")
        return str(found.cluster_id), len(found.brokers)

    def cluster_id(self) -> str:
        """Return the id of the cluster at the address. Raises `BrokerNotAvailable`."""
        return self.cluster()[0]

    def describe(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return the topics of these names that exist; those that do not are left out.

        Raises `BrokerNotAvailable`, and the error of the first topic for which the broker returned one.
        """
        found = self.ask(names)
        for error in found.refused.values():
            raise error
        return dict(found.known)

    def ask(self, names: Iterable[str]) -> TopicsFound:
        """Return what the broker knows of each of these topics; an error of one does not concern the others.

        The broker is not asked about names that no topic can have. If it dies with the request on its way, another
        one is asked. Raises `BrokerNotAvailable` when none responds for any.
        """
        known: dict[str, TopicInfo] = {}
        refused: dict[str, ShareError] = {}
        silent: BrokerNotAvailable | None = None
        wanted: list[str] = []
        for name in sorted(set(names)):
            problem = topic_name_problem(name)
            if problem:
                refused[name] = InvalidTopic(problem)
            else:
                wanted.append(name)
        for first in range(0, len(wanted), ASKED_AT_ONCE):
            if silent is not None:
                # One wait for the broker is enough.
                refused.update(dict.fromkeys(wanted[first:], silent))
                break
            some = wanted[first : first + ASKED_AT_ONCE]
            silent = self._ask(some, known, refused)
            if silent is not None and connection_broke(silent):
                left = [name for name in some if isinstance(refused.get(name), BrokerNotAvailable)]
                for name in left:
                    del refused[name]
                silent = self._ask(left, known, refused)
        if silent is not None and all(name in refused for name in wanted):
            raise silent
        return TopicsFound(known, refused)

    def _ask(
        self, wanted: list[str], known: dict[str, TopicInfo], refused: dict[str, ShareError]
    ) -> BrokerNotAvailable | None:
        """Send one request. Return the last error that shows that the broker does not respond."""
        silent: BrokerNotAvailable | None = None
        futures = self._admin().describe_topics(TopicCollection(wanted), request_timeout=self._timeout)
        for name, future in futures.items():
            try:
                described = self._result(future)
            except UnknownTopicOrPartition:
                continue
            except BrokerNotAvailable as error:
                refused[name] = silent = error
            except ShareError as error:
                refused[name] = error
            else:
                topic_id = _uuid_text(described.topic_id)
                if topic_id == _WITHOUT_ID:
                    refused[name] = UnsupportedVersion(_NO_TOPIC_IDS)
                else:
                    leaderless = (each.id for each in described.partitions if not _is_led(each))
                    replicas = min((len(each.replicas) for each in described.partitions), default=0)
                    known[name] = TopicInfo(
                        topic_id, len(described.partitions), frozenset(leaderless), replicas
                    )
        return silent

    def names(self) -> list[str]:
        """Return the names of the topics that the caller may see, without the broker's own.

        Raises `BrokerNotAvailable`.
        """
        try:
            found = self._admin().list_topics(timeout=self._timeout).topics
        except KafkaException as error:
            raise self._unavailable(error.args[0].str()) from error
        return sorted(name for name in found if not name.startswith("__"))

    def info(self, name: str) -> TopicInfo:
        """Return a topic that must exist. Raises `UnknownTopicOrPartition`, and as `describe`."""
        return self.require([name])[name]

    def require(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return topics that must all exist. Raises `UnknownTopicOrPartition`, and as `describe`."""
        wanted = list(names)
        there = self.describe(wanted)
        for name in wanted:
            if name not in there:
                raise self.missing(name)
        return there

    def missing(self, name: str) -> UnknownTopicOrPartition:
        """Return the error for a topic that does not exist, with the names most like it."""
        known = nearest(name, self.names(), "topics")
        return UnknownTopicOrPartition(f"There is no topic {name!r}. {known} Check the name, or create it.")

    def offsets(self, name: str, patience: float | None = None) -> dict[int, LogOffsets]:
        """Return log start, log end and last stable offset of every partition of a topic.

        Partitions without a leader are waited for `patience` seconds (the client's own time limit), then left out.
        Raises `UnknownTopicOrPartition` without such a topic, `LeaderNotAvailable` if none of its partitions has a
        leader, `BrokerNotAvailable` if the broker does not respond.
        """
        found = self._until_led(name, self.offsets_of, patience)
        return {partition: offsets for (_, partition), offsets in found.items()}

    def offsets_of(
        self, partitions: Mapping[str, Iterable[int]], refused: dict[str, ShareError] | None = None
    ) -> dict[tuple[str, int], LogOffsets]:
        """Return the log offsets of partitions of many topics at once.

        Makes three requests for any number of topics. Partitions without a leader are left out; for one that is
        asked for (`TopicInfo.led` has the others), the client waits until its time limit. Raises
        `BrokerNotAvailable` if no broker responds, and the error of one partition if all have one, unless `refused`
        is given: it receives errors by topic.
        """
        asked = [TopicPartition(name, p) for name, some in sorted(partitions.items()) for p in some]
        if not asked:
            return {}
        earliest = self._list(asked, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)
        latest = self._list(asked, _LATEST, IsolationLevel.READ_UNCOMMITTED)
        stable = self._list(asked, _LATEST, IsolationLevel.READ_COMMITTED)
        # All three were sent before the first result is waited for.
        starts, ends, stables = (self._collect(futures, refused) for futures in (earliest, latest, stable))
        return {
            key: _of_one_moment(starts[key], ends[key], stables[key])
            for key in starts
            # Below 0 is the client's "no offset": the partition had no leader.
            if min(starts[key], ends.get(key, -1), stables.get(key, -1)) >= 0
        }

    def settle(self, names: Iterable[str], seconds: float = SETTLE_SECONDS) -> bool:
        """Wait until readers of committed records see everything in these topics; return whether they do.

        A broker confirms a commit before the partitions have its markers: a moment before, longer if it has just
        started. An open transaction of another writer also delays readers; the wait ends after `seconds`.
        Errors as `offsets`.
        """
        deadline = time.monotonic() + seconds
        # With `offsets`, which waits for partitions without a leader: a broker that has just started has some.
        logs_of = {name: self.offsets(name) for name in names}
        ends = {(name, at): log.log_end for name, logs in logs_of.items() for at, log in logs.items()}
        while True:
            logs = self.offsets_of(logs_of)
            if all(at in logs and logs[at].last_stable_offset >= end for at, end in ends.items()):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_SETTLED_SECONDS)

    def offsets_for_times(
        self, name: str, timestamp_ms: int, patience: float | None = None
    ) -> dict[int, int | None]:
        """Return per partition the first offset with a timestamp at or after `timestamp_ms` (Unix milliseconds).

        None if there is no such record. `patience` and errors as `offsets`. A time before 1970 counts as 1970: the
        broker does not accept negative times.
        """
        spec = _SPEC.for_timestamp(max(timestamp_ms, 0))

        def ask(partitions: Mapping[str, Iterable[int]]) -> dict[tuple[str, int], int]:
            asked = [TopicPartition(topic, p) for topic, some in partitions.items() for p in some]
            return self._collect(self._list(asked, spec, IsolationLevel.READ_UNCOMMITTED)) if asked else {}

        found = self._until_led(name, ask, patience)
        return {partition: None if offset < 0 else offset for (_, partition), offset in found.items()}

    def committed_offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a consumer group of the broker, per topic and partition.

        Empty for a group that has committed nothing or does not exist. A share group of the broker has no committed
        offsets: raises `GroupIdNotFound` for one. Raises `BrokerNotAvailable`.
        """
        futures = self._admin().list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group_id)], request_timeout=self._timeout
        )
        found = self._result(futures[group_id])
        return {(p.topic, p.partition): p.offset for p in found.topic_partitions if p.offset >= 0}

    def commit_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets for a consumer group of the broker that has no members. Raises the error of the broker."""
        if not offsets:
            return
        wanted = [TopicPartition(*at, offset) for at, offset in offsets.items()]
        futures = self._admin().alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group_id, wanted)], request_timeout=self._timeout
        )
        for each in self._result(futures[group_id]).topic_partitions:
            if each.error is not None:
                raise error_for(int(each.error.code()), each.error.str())

    def configs(self, name: str) -> dict[str, str]:
        """Return the configs of a topic that have a value. Raises the error of the broker."""
        return self._configs(ConfigResource(ResourceType.TOPIC, name))

    def configs_of(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the same of many topics, in one request; a topic whose configs the broker refuses is left out.

        Raises `BrokerNotAvailable`.
        """
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(set(names))]
        if not resources:
            return {}
        found: dict[str, dict[str, str]] = {}
        for resource, future in (
            self._admin().describe_configs(resources, request_timeout=self._timeout).items()
        ):
            try:
                found[resource.name] = _with_values(self._result(future))
            except BrokerNotAvailable:
                raise
            except ShareError as error:
                _log.debug("no configs of topic %s: %s", resource.name, error)
        return found

    def broker_configs(self) -> dict[str, str]:
        """Return the configs of one of the brokers that have a value. Raises the error of the broker."""
        try:
            broker = next(iter(self._admin().list_topics(_NO_TOPIC, timeout=self._timeout).brokers))
        except KafkaException as error:
            raise self._unavailable(error.args[0].str()) from error
        return self._configs(ConfigResource(ResourceType.BROKER, str(broker)))

    def _configs(self, resource: ConfigResource) -> dict[str, str]:
        found = self._admin().describe_configs([resource], request_timeout=self._timeout)[resource]
        return _with_values(self._result(found))

    def create(self, name: str, partitions: int = -1, configs: Mapping[str, str] | None = None) -> TopicInfo:
        """Create a topic and wait until the broker shows it; −1 partitions are the broker's default.

        Raises `TopicAlreadyExists`, `InvalidTopic`, `BrokerNotAvailable`.
        """
        topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(configs or {}))
        futures = self._admin().create_topics(
            [topic], operation_timeout=self._timeout, request_timeout=self._timeout
        )
        self._result(futures[name])
        info = self._until_shown(name, max(partitions, 1))
        if info is None:
            raise BrokerNotAvailable(f"Topic {name!r} was created, but the broker does not show it yet.")
        return info

    def delete(self, name: str) -> None:
        """Delete a topic and wait until the broker no longer shows it.

        Raises `UnknownTopicOrPartition`, `BrokerNotAvailable`.
        """
        futures = self._admin().delete_topics(
            [name], operation_timeout=self._timeout, request_timeout=self._timeout
        )
        self._result(futures[name])
        self._until_shown(name, 0)

    def _until_shown(self, name: str, partitions: int) -> TopicInfo | None:
        # The controller has decided; the broker that serves metadata follows a moment later.
        deadline = time.monotonic() + self._timeout
        info = self.describe([name]).get(name)
        while (info.partitions if info else 0) < partitions or (partitions == 0 and info):
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
            info = self.describe([name]).get(name)
        return info

    def _until_led(
        self,
        name: str,
        ask: Callable[[Mapping[str, Iterable[int]]], dict[tuple[str, int], _Answer]],
        patience: float | None,
    ) -> dict[tuple[str, int], _Answer]:
        # A new topic has partitions whose broker does not know yet that it leads them. Partitions without a leader
        # after the time-out are left out; if none has a leader, that is the error.
        deadline = time.monotonic() + (self._timeout if patience is None else patience)
        while True:
            info = self.info(name)
            try:
                found = ask({name: info.led})
            except ShareError as error:
                if (
                    isinstance(error, BrokerNotAvailable)
                    or not error.retriable
                    or time.monotonic() > deadline
                ):
                    raise
            else:
                if len(found) == info.partitions or (found and time.monotonic() > deadline):
                    return found
                if time.monotonic() > deadline:
                    raise LeaderNotAvailable(
                        f"No partition of topic {name!r} has a leader: its brokers are down. Try again when they run."
                    )
            time.sleep(_LED_SECONDS)

    def _list(
        self, asked: Iterable[TopicPartition], spec: Any, isolation: IsolationLevel
    ) -> dict[TopicPartition, Future[Any]]:
        futures: dict[TopicPartition, Future[Any]] = self._admin().list_offsets(
            dict.fromkeys(asked, spec), isolation_level=isolation, request_timeout=self._timeout
        )
        return futures

    def _collect(
        self, futures: Mapping[TopicPartition, Future[Any]], refused: dict[str, ShareError] | None = None
    ) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        failure: ShareError | None = None
        for partition, future in futures.items():
            try:
                found[partition.topic, partition.partition] = int(self._result(future).offset)
            except ShareError as error:
                if refused is None or isinstance(error, BrokerNotAvailable):
                    failure = error
                elif not error.retriable:
                    refused[partition.topic] = error
                _log.debug("no offset of %s-%d: %s", partition.topic, partition.partition, error)
        if failure is not None and not found:
            raise failure
        return found


def _of_one_moment(start: int, end: int, stable: int) -> LogOffsets:
    """Return offsets that were read at three moments as those of one: the last stable offset lies between the others,
    although records may have come, or retention may have removed some, meanwhile.
    """
    end = max(start, end)
    return LogOffsets(start, end, min(max(start, stable), end))


def _with_values(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _is_led(partition: Any) -> bool:
    """Return whether a described partition has a leader; librdkafka's number for none is -1."""
    return partition.leader is not None and partition.leader.id >= 0


def _uuid_text(uuid: object) -> str:
    # As Kafka prints a Uuid: in URL-safe base64; librdkafka uses ordinary base64.
    return str(uuid).replace("+", "-").replace("/", "_")
