"""Kafka's errors, by Kafka's names and codes.

One class per error of the Kafka protocol that this project returns, under Kafka's name and number
(Kafka's ``org.apache.kafka.common.protocol.Errors``), so that an error means the same in SQL, in Python, over
HTTP and on screen. A class's docstring is its default message: what happened, what was expected, what to do. The
operations document which errors they raise.
"""

from __future__ import annotations

import inspect
from typing import ClassVar

NONE = 0
"""Kafka's number for "no error"; it has no class."""


class ShareError(Exception):
    """The request was refused for a reason that has no name in Kafka. Read the message and the service's
    log."""

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False
    """Whether the same request may succeed later without any change by the caller."""

    def __init__(self, message: str | None = None) -> None:
        self.message = message or explanation(type(self))
        super().__init__(self.message)


def explanation(error: type[ShareError]) -> str:
    """Return the error's own text (its docstring) on one line: what happened, what was expected, what to do."""
    return " ".join(inspect.cleandoc(error.__doc__ or error.name).split())


def first_line(error: BaseException) -> str:
    """Return any error on one line, for the log or another message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class UnknownServerError(ShareError):
    """The server failed unexpectedly. Its log has the cause; trying again may or may not
    help."""

    code = -1
    name = "UNKNOWN_SERVER_ERROR"


class OffsetOutOfRange(ShareError):
    """The offset is outside the partition's log. Use one between the log start and the log end offset."""

    code = 1
    name = "OFFSET_OUT_OF_RANGE"


class UnknownTopicOrPartition(ShareError):
    """The topic or partition does not exist, or the group has no state for it. Check the name, create the
    topic, or let a member of the group subscribe to it first."""

    code = 3
    name = "UNKNOWN_TOPIC_OR_PARTITION"
    retriable = True


class LeaderNotAvailable(ShareError):
    """The partition has no leader, or its share-partition is not initialised yet. Try again in a moment."""

    code = 5
    name = "LEADER_NOT_AVAILABLE"
    retriable = True


class NotLeaderOrFollower(ShareError):
    """This broker does not lead the partition. Refresh the metadata and send the request to the leader."""

    code = 6
    name = "NOT_LEADER_OR_FOLLOWER"
    retriable = True


class RequestTimedOut(ShareError):
    """No response arrived in the time allowed. The operation may still have happened: repeat it with the same
    request id, or check the state before repeating."""

    code = 7
    name = "REQUEST_TIMED_OUT"
    retriable = True


class BrokerNotAvailable(ShareError):
    """The Kafka broker does not respond. Check the bootstrap servers and that the broker is running. Work that needs
    no broker continues; other work is tried again."""

    code = 8
    name = "BROKER_NOT_AVAILABLE"
    retriable = True


class CoordinatorLoadInProgress(ShareError):
    """The coordinator is still loading the group. Try again in a moment."""

    code = 14
    name = "COORDINATOR_LOAD_IN_PROGRESS"
    retriable = True


class CoordinatorNotAvailable(ShareError):
    """The coordinator cannot reach its database. Try again; if it lasts, check `GET /ready` of the service and the
    database's address."""

    code = 15
    name = "COORDINATOR_NOT_AVAILABLE"
    retriable = True


class NotCoordinator(ShareError):
    """This server does not coordinate the group. Send the request to the one that does."""

    code = 16
    name = "NOT_COORDINATOR"
    retriable = True


class InvalidTopic(ShareError):
    """The topic's name is not legal. Use letters, digits, dots, underscores and hyphens, 249 characters at
    most."""

    code = 17
    name = "INVALID_TOPIC_EXCEPTION"


class InvalidGroupId(ShareError):
    """The group id is empty. Name the share group."""

    code = 24
    name = "INVALID_GROUP_ID"


class UnknownMemberId(ShareError):
    """The member is not in the group: it never joined, left, or its session expired. Join again with epoch
    0."""

    code = 25
    name = "UNKNOWN_MEMBER_ID"


class TopicAuthorizationFailed(ShareError):
    """The caller may not see or read the topic. Ask for DESCRIBE (and READ, to consume) on it."""

    code = 29
    name = "TOPIC_AUTHORIZATION_FAILED"


class GroupAuthorizationFailed(ShareError):
    """The caller may not do this with the group. Ask for READ, DESCRIBE, ALTER or DELETE on it, as the operation
    requires."""

    code = 30
    name = "GROUP_AUTHORIZATION_FAILED"


class ClusterAuthorizationFailed(ShareError):
    """The caller may not do this on the whole cluster. Do it as the schema's owner or as the service."""

    code = 31
    name = "CLUSTER_AUTHORIZATION_FAILED"


class UnsupportedVersion(ShareError):
    """The server does not support this version of the request, or the feature is off. Upgrade the server."""

    code = 35
    name = "UNSUPPORTED_VERSION"


class TopicAlreadyExists(ShareError):
    """A topic of this name already exists. Use it, or choose another name."""

    code = 36
    name = "TOPIC_ALREADY_EXISTS"


class InvalidConfig(ShareError):
    """The configuration was refused: the name is unknown, or the value is outside the allowed range. Nothing was
    changed."""

    code = 40
    name = "INVALID_CONFIG"


class InvalidRequest(ShareError):
    """The request is malformed: a field is missing, empty or out of range. Correct it; repeating it does not
    help."""

    code = 42
    name = "INVALID_REQUEST"


class SaslAuthenticationFailed(BrokerNotAvailable):
    """The broker refused the user, password or token, or the service refused the bearer token. Correct the settings
    `SHAREQUEUE_KAFKA_SASL_…`; or create a new token with `sharequeue tokens create` and set it in
    SHAREQUEUE_SERVICE_TOKEN or --service-token-file."""

    code = 58
    name = "SASL_AUTHENTICATION_FAILED"
    retriable = False


class NonEmptyGroup(ShareError):
    """The group still has members. Stop them, or wait until their sessions have expired, then try again."""

    code = 68
    name = "NON_EMPTY_GROUP"


class GroupIdNotFound(ShareError):
    """The share group does not exist. A group is created by its first member; check the name."""

    code = 69
    name = "GROUP_ID_NOT_FOUND"


class FencedLeaderEpoch(ShareError):
    """The request names an older leader epoch than the current one. Refresh the metadata and try again."""

    code = 74
    name = "FENCED_LEADER_EPOCH"
    retriable = True


class OffsetNotAvailable(ShareError):
    """The reset policy finds no offset yet: with `by_duration`, no record is recent enough. The share-partition
    starts when one arrives; or set `share.auto.offset.reset` to earliest or latest."""

    code = 78
    name = "OFFSET_NOT_AVAILABLE"
    retriable = True


class GroupMaxSizeReached(ShareError):
    """The group has as many members as `group.share.max.size` allows. Stop one, or raise the limit."""

    code = 81
    name = "GROUP_MAX_SIZE_REACHED"


class ThrottlingQuotaExceeded(ShareError):
    """The principal sends more requests than the service allows for one principal. Nothing was done. Wait for
    `throttle_time_ms` (for a GET: `Retry-After`) and try again."""

    code = 89
    name = "THROTTLING_QUOTA_EXCEEDED"
    retriable = True


class UnknownTopicId(ShareError):
    """No topic has this id: it was deleted, and perhaps created again with the same name. Refresh the metadata."""

    code = 100
    name = "UNKNOWN_TOPIC_ID"
    retriable = True


class InconsistentClusterId(ShareError):
    """The state belongs to a Kafka cluster other than the one at this address. Check both addresses."""

    code = 104
    name = "INCONSISTENT_CLUSTER_ID"


class FencedMemberEpoch(ShareError):
    """The member's epoch is not the group's current one for it. Abandon all leases and join again with epoch 0."""

    code = 110
    name = "FENCED_MEMBER_EPOCH"


class InvalidRecordState(ShareError):
    """The records are no longer held under this lease: the lock expired, or they were acknowledged. Nothing was
    changed; they will be, or have been, delivered again. Renew in time, or use a longer lock duration."""

    code = 121
    name = "INVALID_RECORD_STATE"


class ShareSessionNotFound(ShareError):
    """The share session does not exist. Open one with epoch 0."""

    code = 122
    name = "SHARE_SESSION_NOT_FOUND"
    retriable = True


class InvalidShareSessionEpoch(ShareError):
    """The share session has a different epoch. Open it again with epoch 0."""

    code = 123
    name = "INVALID_SHARE_SESSION_EPOCH"
    retriable = True


class FencedStateEpoch(ShareError):
    """The share-partition's offsets were reset after this lease was acquired. Abandon the lease and acquire
    again."""

    code = 124
    name = "FENCED_STATE_EPOCH"


class ShareSessionLimitReached(ShareError):
    """The maximum number of share sessions is reached. Close one, or try again later."""

    code = 133
    name = "SHARE_SESSION_LIMIT_REACHED"
    retriable = True


def _classes() -> list[type[ShareError]]:
    # Only classes of this module: a subclass from elsewhere keeps its parent's name and number.
    direct = ShareError.__subclasses__()
    known = [*direct, *(each for error in direct for each in error.__subclasses__())]
    return [error for error in known if error.__module__ == __name__]


ERRORS_BY_CODE: dict[int, type[ShareError]] = {error.code: error for error in _classes()}
ERRORS_BY_NAME: dict[str, type[ShareError]] = {error.name: error for error in _classes()}
# Names in older texts (kafka-share-groups and early drafts of the KIP).
ERRORS_BY_NAME["GROUP_NOT_EMPTY"] = NonEmptyGroup


def error_for(name_or_code: str | int, message: str | None = None) -> ShareError:
    """Return the error with this Kafka name or number, ready to raise.

    An unknown name or number becomes `UnknownServerError` with the name or number in its message. Raises
    `ValueError` for NONE (0), which is not an error.
    """
    if name_or_code in (NONE, "NONE"):
        raise ValueError("NONE is not an error")
    if isinstance(name_or_code, int):
        found = ERRORS_BY_CODE.get(name_or_code)
    else:
        found = ERRORS_BY_NAME.get(name_or_code.upper())
    if found is not None:
        return found(message)
    return UnknownServerError(f"{name_or_code}: {message}" if message else f"unexpected error {name_or_code}")
