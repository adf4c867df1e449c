"""Decide whether a topic may take the group's dead letters, and if not, what to do.

Kafka's rules for a dead-letter topic (KIP-1191, R-DL-6, R-DL-7; Kafka's `ShareGroupDLQStateManager`): its name,
its opt-in, its creation. When a rule is broken, Kafka drops the records and writes a line to its log.
Here the records are held, and the reason is a message for the operator of the group. The content of the topic is in
`deadletters.letters`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.domain.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    ShareError,
    TopicAlreadyExists,
    UnknownServerError,
    first_line,
)
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.configs.names import environment_name
from sharequeue.kafka.topics import Topics
from sharequeue.kafka.transactions import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DENIED,
    TRANSACTION_TIMEOUT_MS,
    is_passing,
    most_uncompressed,
)

GROUP_ENABLE = "errors.deadletterqueue.group.enable"
"""The topic config that allows dead letters of groups in a topic. Brokers before 4.4 do not know it."""
OPT_IN = "sharequeue.dead.letter.topic.enable"
"""The group config that replaces it if the broker does not know it."""
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
TOPIC_NAME = "errors.deadletterqueue.topic.name"
PREFIX = "errors.deadletterqueue.topic.name.prefix"

TIMEOUT_SECONDS = 20.0
ASK_SECONDS = 5.0
"""The timeout of requests about a topic to which nothing is being written."""
_WAIT = "the records wait, and they are tried again."
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class CannotWrite(Exception):
    """Dead letters cannot be written now; the message has the reason and what to do.

    `lasting`: waiting will not help, an operator must act. Only then may records be dropped, if that is allowed.
    """

    def __init__(self, reason: str, *, lasting: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class DeadLetterRules:
    """The settings for dead letters from the configs of the group and the service."""

    group_id: str
    topic: str
    copy_record: bool = False
    drop: bool = False
    messages: bool = True
    """Whether letters have the messages of exceptions."""
    hold_keys: bool = False
    """Whether the key of a letter waits until the letter is redriven or discarded."""
    opted_in: bool = False
    prefix: str = "dlq."
    auto_create: bool = False
    inputs: frozenset[str] = frozenset()
    """Topics that the group reads: letters in one of them would be delivered as records."""

    @classmethod
    def of(cls, configs: GroupConfigs, inputs: Iterable[str] = ()) -> Self:
        """Return the rules of these configs for a group that reads these topics."""
        return cls(
            inputs=frozenset(inputs),
            group_id=configs.group_id,
            topic=configs.dead_letter_topic,
            copy_record=configs.dead_letter_copy_record,
            drop=configs.dead_letter_drop_enable,
            messages=configs.dead_letter_error_message_enable,
            hold_keys=configs.ordered and configs.order_on_dead_letter == "hold",
            opted_in=bool(configs.values.get(OPT_IN, False)),
            prefix=configs.service.dead_letter_prefix,
            auto_create=configs.service.dead_letter_auto_create,
        )


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """A topic that may take the group's dead letters."""

    name: str
    topic_id: str
    partitions: int
    max_message_bytes: int
    """The most bytes of a letter, before a compression by the topic."""

    def partition_for(self, source_partition: int) -> int:
        """Return the partition for the letters of a source partition: its number modulo the topic's partitions."""
        return source_partition % self.partitions


NO_TOPIC = DeadLetterTopic("", "", 1, DEFAULT_MAX_MESSAGE_BYTES)
"""A placeholder for a producer that only fences others and writes nothing."""


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as the broker describes it: number of partitions, id, configs."""

    partitions: int
    topic_id: str
    configs: Mapping[str, str]


def name_problem(rules: DeadLetterRules) -> str | None:
    """Return the fault of the topic's name, and what to do; None if there is none."""
    topic, group = rules.topic, rules.group_id
    rename = f"set `{TOPIC_NAME}` of group `{group}`"
    if not topic:
        return f"group `{group}` has no dead-letter topic, but some of its records wait for one: {rename}."
    if topic.startswith("__"):
        return f"`{topic}` begins with `__`, as only Kafka's internal topics do: {rename} to another."
    if not _LEGAL_NAME.fullmatch(topic) or topic in (".", ".."):
        return (
            f"`{topic}` is not a valid topic name (letters, digits, dot, underscore, hyphen): {rename} to "
            "another."
        )
    if not topic.startswith(rules.prefix):
        return (
            f"`{topic}` does not begin with `{rules.prefix}`: {rename} to one that does, "
            f"or set {environment_name(PREFIX)}."
        )
    if topic in rules.inputs:
        return (
            f"group `{group}` reads `{topic}`, so that its dead letters would be delivered to it again: "
            f"{rename} to another."
        )
    return None


def topic_problem(rules: DeadLetterRules, found: FoundTopic | None) -> str | None:
    """Return why the topic cannot take the group's dead letters, and what to do; None if it can, or can be
    created."""
    topic = rules.topic
    if found is None:
        if rules.auto_create:
            return None
        return (
            f"there is no topic `{topic}`: create it with the config `{GROUP_ENABLE}=true`, "
            f"or let it be created by `{AUTO_CREATE}=true` of the broker or {environment_name(AUTO_CREATE)}=true."
        )
    if GROUP_ENABLE in found.configs:
        if found.configs[GROUP_ENABLE] != "true":
            return (
                f"topic `{topic}` does not accept dead letters of groups: set its config "
                f"`{GROUP_ENABLE}=true`."
            )
    elif not rules.opted_in:
        return (
            f"this broker does not know the topic config `{GROUP_ENABLE}`: if `{topic}` is meant for dead "
            f"letters, set `{OPT_IN}=true` of group `{rules.group_id}`."
        )
    policy = found.configs.get("cleanup.policy", "delete")
    if "compact" in policy.split(","):
        # Letters have no key, unless they are copies of records with a key; a compacted topic refuses records
        # without one.
        return (
            f"topic `{topic}` is compacted and accepts no record without a key: set its "
            "`cleanup.policy=delete`."
        )
    return None


class TopicKeeper:
    """Finds and checks the dead-letter topic, and creates it if that is allowed."""

    def __init__(self, settings: Settings, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._topics = Topics(settings, timeout_seconds)

    def ready(self, rules: DeadLetterRules) -> DeadLetterTopic:
        """Return the topic, ready to be written; create it if it is missing and may be created.

        Raises `CannotWrite`: lasting if a rule is broken or access is denied, passing if the broker does not respond.
        """
        found = self.judge(rules)
        if found is None:
            self._create(rules.topic)
            found = self.find(rules.topic)
            if found is None:
                raise CannotWrite(
                    f"topic `{rules.topic}` was deleted while it was created: try again.", lasting=False
                )
        limit = most_uncompressed(found.configs)
        return DeadLetterTopic(rules.topic, found.topic_id, found.partitions, limit)

    def judge(self, rules: DeadLetterRules) -> FoundTopic | None:
        """Return the topic, which takes the group's dead letters; None if it is missing and may be created.

        Raises `CannotWrite`, like `ready`.
        """
        problem = name_problem(rules)
        found = None if problem else self.find(rules.topic)
        if found is None and not problem and not rules.auto_create:
            rules = replace(rules, auto_create=self._broker_creates())
        problem = problem or topic_problem(rules, found)
        if problem:
            raise CannotWrite(problem, lasting=True)
        return found

    def find(self, topic: str) -> FoundTopic | None:
        """Return the topic's current state at the broker; None if it does not exist. Raises `CannotWrite`."""
        needed = "DESCRIBE"
        try:
            info = self._topics.describe([topic]).get(topic)
            if info is None:
                return None
            needed = "DESCRIBE_CONFIGS"
            configs = self._topics.configs(topic)
        except ShareError as error:
            raise unanswered(error, f"grant {needed} on topic `{topic}`") from error
        return FoundTopic(info.partitions, info.topic_id, configs)

    def _broker_creates(self) -> bool:
        """Return whether the broker's own config lets share groups create their dead-letter topics (Kafka 4.4)."""
        try:
            return self._topics.broker_configs().get(AUTO_CREATE) == "true"
        except ShareError:
            # If the broker's configs may not be read, our own setting applies.
            return False

    def _create(self, topic: str) -> None:
        by_hand = f"create topic `{topic}` by hand with `{GROUP_ENABLE}=true`, or grant CREATE on it"
        try:
            create_dead_letter_topic(self._topics, topic)
        except ShareError as error:
            raise unanswered(error, by_hand) from error


def inputs_of(database: Database, group_id: str) -> frozenset[str]:
    """Return the topics of a group's share-partitions."""
    rows = database.rows(
        text("select distinct topic from sharequeue.share_partition_times where group_id = :group_id"),
        group_id=group_id,
    )
    return frozenset(row["topic"] for row in rows)


def why_held(settings: Settings, database: Database, configs: GroupConfigs) -> str | None:
    """Return why the dead-letter topic of a group takes no letters until an operator acts, and what to do.

    None if it takes them, if the group has no such topic, and if the broker does not respond. Raises only errors of
    the database.
    """
    return _held_or_missing(settings, database, configs)[0]


def _held_or_missing(
    settings: Settings, database: Database, configs: GroupConfigs
) -> tuple[str | None, bool]:
    """Return the reason of `why_held`, and whether the topic is missing and the first dead letter creates it."""
    if not configs.dead_letter_topic:
        return None, False
    rules = DeadLetterRules.of(configs, inputs_of(database, configs.group_id))
    try:
        return None, TopicKeeper(settings, ASK_SECONDS).judge(rules) is None
    except CannotWrite as problem:
        return problem.reason if problem.lasting else None, False
    except (ShareError, KafkaException, SettingMissing):
        return None, False


def warning_of_alter(
    settings: Settings, database: Database, configs: GroupConfigs, changes: Collection[str]
) -> str | None:
    """Return a warning after a change of configs, if their dead-letter topic takes no letters now or does not exist.

    Asks the database and the broker only if the changes concern that topic.
    """
    if {TOPIC_NAME, OPT_IN}.isdisjoint(changes):
        return None
    reason, missing = _held_or_missing(settings, database, configs)
    if missing:
        return (
            f"there is no topic `{configs.dead_letter_topic}`: check the name. The first dead letter creates it, as "
            f"`{AUTO_CREATE}` is true; to create it yourself, give it the config `{GROUP_ENABLE}=true`"
        )
    if reason is None:
        return None
    end = "dropped" if configs.dead_letter_drop_enable else "held until an operator acts"
    return f"dead letters of group {configs.group_id} will be {end}: {reason}"


def create_dead_letter_topic(topics: Topics, name: str, partitions: int = -1) -> None:
    """Create the topic as Kafka does: the broker's partition count and replication, opted in, CreateTime.

    If the broker does not know the opt-in, the topic is created without it. An existing topic is not an error. Raises
    the other errors of `Topics.create`.
    """
    configs = {GROUP_ENABLE: "true", "message.timestamp.type": "CreateTime"}
    with suppress(TopicAlreadyExists):
        try:
            topics.create(name, partitions, configs)
        except InvalidConfig:
            del configs[GROUP_ENABLE]
            topics.create(name, partitions, configs)


_NEEDS_SOMEBODY = DENIED | frozenset(
    {
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.SECURITY_DISABLED,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.UNSUPPORTED_VERSION,
    }
)
"""Refusals that last until an operator changes a permission, a size, a policy or a version. A refused password is not
among them: the password may be about to change, and no record may be dropped for it."""
_LOGIN = "check the security settings SHAREQUEUE_KAFKA_… of the writer, and the broker's listener"
_SIZE = "raise `max.message.bytes` of the dead-letter topic"
_BY_HAND = f"create it by hand with `{GROUP_ENABLE}=true`"
_REMEDIES: Mapping[int, str] = {
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _LOGIN,
    KafkaError.SECURITY_DISABLED: _LOGIN,
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.MSG_SIZE_TOO_LARGE: _SIZE,
    KafkaError.RECORD_LIST_TOO_LARGE: _SIZE,
    KafkaError.INVALID_RECORD: "check the configs of the dead-letter topic, for example `message.timestamp.type` and "
    "`cleanup.policy`, and the broker's log",
    KafkaError.POLICY_VIOLATION: f"the broker has a policy for topics: fit the topic into it, or {_BY_HAND}",
    KafkaError.TOPIC_EXCEPTION: f"choose another name, which does not differ from an existing one only in dots and "
    f"underscores: set `{TOPIC_NAME}` of the group",
    KafkaError.INVALID_CONFIG: f"the broker does not take the topic's configs: {_BY_HAND}",
    KafkaError.INVALID_REPLICATION_FACTOR: "the broker's `default.replication.factor` is larger than the number of "
    f"its brokers: lower it, or {_BY_HAND}",
    KafkaError.INVALID_PARTITIONS: f"check the broker's `num.partitions`, or {_BY_HAND}",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "raise `transaction.max.timeout.ms` of the brokers to "
    f"{TRANSACTION_TIMEOUT_MS} or more",
    KafkaError.UNSUPPORTED_VERSION: "the broker is too old for transactions or this client: upgrade it",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "raise the topic's message format, or upgrade the broker",
}
"""What to do about a refusal that is not one of permission, by its code."""
_NO_REMEDY = "see the broker's log"


def broker_refusal(error: KafkaException, grant: str) -> CannotWrite:
    """Return a broker's refusal as a reason to hold records; `grant` names the permission that may be missing.

    It is lasting only if it is known to need an operator. Any other may pass, and does not cause records to be
    dropped.
    """
    cause: Any = error.args[0]
    if cause.code() == KafkaError.UNKNOWN:
        return _nameless(cause.str())
    if is_passing(cause):
        return CannotWrite(f"the broker does not answer ({cause.str()}): {_WAIT}", lasting=False)
    return _refused(cause.code(), cause.str(), grant)


def unanswered(error: ShareError, grant: str) -> CannotWrite:
    """Return one of Kafka's named errors as a reason to hold records; `grant` is as for `broker_refusal`."""
    if isinstance(error, UnknownServerError):
        return _nameless(error.message)
    if error.retriable or isinstance(error, BrokerNotAvailable):
        return CannotWrite(f"{error.message} {_WAIT.capitalize()}", lasting=False)
    return _refused(error.code, str(error), grant)


def _refused(code: int, said: str, grant: str) -> CannotWrite:
    remedy = grant if code in DENIED else _REMEDIES.get(code, _NO_REMEDY)
    return CannotWrite(f"the broker refuses ({said}): {remedy}.", lasting=code in _NEEDS_SOMEBODY)


def unforeseen(error: Exception) -> CannotWrite:
    """Return an error that has no rule as a reason to hold records: it is named, and drops none."""
    said = error.args[0].str() if isinstance(error, KafkaException) else first_line(error)
    return CannotWrite(
        f"the writer failed ({type(error).__name__}: {said}): {_WAIT} If it fails in the same way, "
        "check the configs of the dead-letter topic and the settings SHAREQUEUE_KAFKA_…",
        lasting=False,
    )


def _nameless(error: str) -> CannotWrite:
    # No permission is missing, so no record may be dropped.
    return CannotWrite(
        f"the broker returned an unknown error ({error}), see the broker's log: {_WAIT}", lasting=False
    )
