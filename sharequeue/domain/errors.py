"""Kafka's errors, by Kafka's names and codes, and the base class of the errors of jobs.

One class per error of the Kafka protocol that this project returns, under Kafka's name and number
(``org.apache.kafka.common.protocol.Errors``), so that an error means the same in SQL, in Python, over HTTP and on
screen. A class's docstring is its default message: what happened, what was expected, what to do.
"""

from __future__ import annotations

import inspect
import re
from typing import ClassVar

NONE = 0
"""Kafka's number for "no error"; it has no class."""


class ShareError(Exception):
    """The request was refused for a reason that has no name in Kafka. Read the message and the service's log."""

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False
    """Whether the same request may succeed later without any change by the caller."""

    def __init_subclass__(
        cls, *, code: int | None = None, name: str | None = None, retriable: bool = False
    ) -> None:
        """Set Kafka's number, its name (by default that of the class), and `retriable`.

        A subclass without a number keeps what its parent has.
        """
        if code is not None:
            cls.code, cls.retriable = code, retriable
            cls.name = name or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()

    def __init__(self, message: str | None = None) -> None:
        self.message = message or explanation(type(self))
        super().__init__(self.message)


class PipelineError(Exception):
    """The base class of errors that end a run, a lease, a replay or a compaction, and need a user's action."""

    retriable: ClassVar[bool] = False
    """Whether the same run may succeed later without any change by the user."""


def explanation(error: type[ShareError]) -> str:
    """Return the error's own text (its docstring) on one line: what happened, what was expected, what to do."""
    return " ".join(inspect.cleandoc(error.__doc__ or error.name).split())


def first_line(error: BaseException | str) -> str:
    """Return any error, or its text, on one line, for the log or another message."""
    nothing = "" if isinstance(error, str) else type(error).__name__
    return (str(error).strip().splitlines() or [nothing])[0]


class UnknownServerError(ShareError, code=-1):
    """The server failed unexpectedly. Its log has the cause; trying again may or may not help."""


class OffsetOutOfRange(ShareError, code=1):
    """The offset is outside the partition's log. Use one between the log start and the log end offset."""


class UnknownTopicOrPartition(ShareError, code=3, retriable=True):
    """The topic or partition does not exist, or the group has no state for it. Check the name, create the topic,
    or let a member of the group subscribe to it first."""


class LeaderNotAvailable(ShareError, code=5, retriable=True):
    """The partition has no leader, or its share-partition is not initialised yet. Try again in a moment."""


class NotLeaderOrFollower(ShareError, code=6, retriable=True):
    """This broker does not lead the partition. Refresh the metadata and send the request to the leader."""


class RequestTimedOut(ShareError, code=7, retriable=True):
    """No response arrived in the time allowed. The operation may still have happened: repeat it with the same
    request id, or check the state before repeating."""


class BrokerNotAvailable(ShareError, code=8, retriable=True):
    """The Kafka broker does not respond. Check the bootstrap servers and that the broker is running. Work that
    needs no broker continues; other work is tried again."""


class CoordinatorLoadInProgress(ShareError, code=14, retriable=True):
    """The coordinator is still loading the group. Try again in a moment."""


class CoordinatorNotAvailable(ShareError, code=15, retriable=True):
    """The coordinator cannot reach its database. Try again; if it lasts, check `GET /ready` of the service and
    the database's address."""


class NotCoordinator(ShareError, code=16, retriable=True):
    """This server does not coordinate the group. Send the request to the one that does."""


class InvalidTopic(ShareError, code=17, name="INVALID_TOPIC_EXCEPTION"):
    """The topic's name is not legal. Use letters, digits, dots, underscores and hyphens, 249 characters at most."""


class InvalidGroupId(ShareError, code=24):
    """The group id is empty. Name the share group."""


class UnknownMemberId(ShareError, code=25):
    """The member is not in the group: it never joined, left, or its session expired. Join again with epoch 0."""


class TopicAuthorizationFailed(ShareError, code=29):
    """The caller may not see or read the topic. Ask for DESCRIBE (and READ, to consume) on it."""


class GroupAuthorizationFailed(ShareError, code=30):
    """The caller may not do this with the group. Ask for READ, DESCRIBE, ALTER or DELETE on it, as the operation
    requires."""


class ClusterAuthorizationFailed(ShareError, code=31):
    """The caller may not do this on the whole cluster. Do it as the schema's owner or as the service."""


class InvalidTimestamp(ShareError, code=32):
    """A record's timestamp is out of the range that its reader can represent."""


class UnsupportedVersion(ShareError, code=35):
    """The server does not support this version of the request, or the feature is off. Upgrade the server."""


class TopicAlreadyExists(ShareError, code=36):
    """A topic of this name already exists. Use it, or choose another name."""


class InvalidPartitions(ShareError, code=37):
    """The broker does not take this number of partitions. Check its `num.partitions`, or give a number."""


class InvalidReplicationFactor(ShareError, code=38):
    """The topic would have more replicas than the cluster has brokers. Check the broker's
    `default.replication.factor`."""


class InvalidConfig(ShareError, code=40):
    """The configuration was refused: the name is unknown, or the value is outside the allowed range. Nothing was
    changed."""


class InvalidRequest(ShareError, code=42):
    """The request is malformed: a field is missing, empty or out of range. Correct it; repeating it does not
    help."""


class PolicyViolation(ShareError, code=44):
    """The broker's policy for topics refuses the request. Fit the topic into the policy."""


class SaslAuthenticationFailed(BrokerNotAvailable, code=58, retriable=False):
    """The broker refused the user, password or token, or the service refused the bearer token. Correct the
    settings `SHAREQUEUE_KAFKA_SASL_…`; or create a new token with `sharequeue tokens create` and set it in
    SHAREQUEUE_SERVICE_TOKEN or --service-token-file."""


class NonEmptyGroup(ShareError, code=68):
    """The group still has members. Stop them, or wait until their sessions have expired, then try again."""


class GroupIdNotFound(ShareError, code=69):
    """The share group does not exist. A group is created by its first member; check the name."""


class FencedLeaderEpoch(ShareError, code=74, retriable=True):
    """The request names an older leader epoch than the current one. Refresh the metadata and try again."""


class OffsetNotAvailable(ShareError, code=78, retriable=True):
    """The reset policy finds no offset yet: with `by_duration`, no record is recent enough. The share-partition
    starts when one arrives; or set `share.auto.offset.reset` to earliest or latest."""


class GroupMaxSizeReached(ShareError, code=81):
    """The group has as many members as `group.share.max.size` allows. Stop one, or raise the limit."""


class ThrottlingQuotaExceeded(ShareError, code=89, retriable=True):
    """The principal sends more requests than the service allows for one principal. Nothing was done. Wait for
    `throttle_time_ms` (for a GET: `Retry-After`) and try again."""


class UnknownTopicId(ShareError, code=100, retriable=True):
    """No topic has this id: it was deleted, and perhaps created again with the same name. Refresh the metadata."""


class InconsistentClusterId(ShareError, code=104):
    """The state belongs to a Kafka cluster other than the one at this address, or to another database, of which this
    one is a copy. Check both addresses; `sharequeue adopt` shows to which database the state belongs."""


class FencedMemberEpoch(ShareError, code=110):
    """The member's epoch is not the group's current one for it. Abandon all leases and join again with epoch 0."""


class InvalidRecordState(ShareError, code=121):
    """The records are no longer held under this lease: the lock expired, or they were acknowledged. Nothing was
    changed; they will be, or have been, delivered again. Renew in time, or use a longer lock duration."""


class FencedStateEpoch(ShareError, code=124):
    """The share-partition's offsets were reset after this lease was acquired. Abandon the lease and acquire
    again."""


def _classes() -> list[type[ShareError]]:
    # Only classes of this module: a subclass from elsewhere keeps its parent's name and number.
    direct = ShareError.__subclasses__()
    known = [*direct, *(each for error in direct for each in error.__subclasses__())]
    return [error for error in known if error.__module__ == __name__]


ERRORS_BY_CODE: dict[int, type[ShareError]] = {error.code: error for error in _classes()}


def error_for(code: int, message: str | None = None) -> ShareError:
    """Return the error with Kafka's number, ready to raise; `UnknownServerError` for an unknown number.

    Raises `ValueError` for NONE (0), which is not an error.
    """
    if code == NONE:
        raise ValueError("NONE is not an error")
    if code in ERRORS_BY_CODE:
        return ERRORS_BY_CODE[code](message)
    return UnknownServerError(f"{code}: {message}" if message else f"unexpected error {code}")
