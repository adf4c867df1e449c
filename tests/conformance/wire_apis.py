"""The fields of the requests of share groups.

As Kafka 4.4 has each in its newest version: what members send, what operators ask for, and what a leader asks the
share coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Fields = tuple[tuple[str, Any], ...]
"""A struct: names with types. A type is the name of a number or text, a struct, or a list of one type."""

_ACKS: Fields = (("first", "i64"), ("last", "i64"), ("types", ["i8"]))
_ACK_TOPICS: Fields = (("topic_id", "uuid"), ("partitions", [(("partition", "i32"), ("acks", [_ACKS]))]))
_LEADER: Fields = (("leader_id", "i32"), ("leader_epoch", "i32"))
_NODES: Fields = (("node_id", "i32"), ("host", "text"), ("port", "i32"), ("rack", "text"))
_ERROR: Fields = (("error", "i16"), ("message", "text"))
_SHARE: Fields = (("topic_id", "uuid"), ("partitions", ["i32"]))
_ACQUIRED: Fields = (("first", "i64"), ("last", "i64"), ("count", "i16"))
_THROTTLE: Fields = (("throttle_ms", "i32"),)


@dataclass(frozen=True, slots=True)
class Api:
    """One request with its response."""

    key: int
    version: int
    request: Fields
    response: Fields


HEARTBEAT = Api(
    76,
    1,
    (("group", "text"), ("member", "text"), ("epoch", "i32"), ("rack", "text"), ("topics", ["text"])),
    (
        *_THROTTLE,
        *_ERROR,
        ("member", "text"),
        ("epoch", "i32"),
        ("interval_ms", "i32"),
        ("assignment", ("nullable", (("topics", [_SHARE]),))),
    ),
)
DESCRIBE_GROUPS = Api(
    77,
    1,
    (("groups", ["text"]), ("operations", "bool")),
    (
        *_THROTTLE,
        (
            "groups",
            [
                (
                    *_ERROR,
                    *(("group", "text"), ("state", "text"), ("group_epoch", "i32")),
                    *(("assignment_epoch", "i32"), ("assignor", "text")),
                    (
                        "members",
                        [
                            (
                                *(("member", "text"), ("rack", "text"), ("epoch", "i32")),
                                *(("client_id", "text"), ("client_host", "text"), ("subscribed", ["text"])),
                                (
                                    "assignment",
                                    (
                                        (
                                            "topics",
                                            [
                                                (
                                                    ("topic_id", "uuid"),
                                                    ("topic", "text"),
                                                    ("partitions", ["i32"]),
                                                )
                                            ],
                                        ),
                                    ),
                                ),
                            )
                        ],
                    ),
                    ("operations", "i32"),
                )
            ],
        ),
    ),
)
FETCH = Api(
    78,
    2,
    (
        *(("group", "text"), ("member", "text"), ("epoch", "i32"), ("wait_ms", "i32"), ("min_bytes", "i32")),
        *(("max_bytes", "i32"), ("max_records", "i32"), ("batch_size", "i32"), ("mode", "i8")),
        *(("renews", "bool"), ("topics", [_ACK_TOPICS]), ("forgotten", [_SHARE])),
    ),
    (
        *_THROTTLE,
        *_ERROR,
        ("lock_ms", "i32"),
        (
            "topics",
            [
                (
                    ("topic_id", "uuid"),
                    (
                        "partitions",
                        [
                            (
                                ("partition", "i32"),
                                *_ERROR,
                                *(("ack_error", "i16"), ("ack_message", "text"), ("leader", _LEADER)),
                                *(("records", "bytes"), ("acquired", [_ACQUIRED])),
                            )
                        ],
                    ),
                )
            ],
        ),
        ("nodes", [_NODES]),
    ),
)
ACKNOWLEDGE = Api(
    79,
    2,
    (
        *(("group", "text"), ("member", "text"), ("epoch", "i32"), ("renews", "bool")),
        ("topics", [_ACK_TOPICS]),
    ),
    (
        *_THROTTLE,
        *_ERROR,
        ("lock_ms", "i32"),
        (
            "topics",
            [
                (
                    ("topic_id", "uuid"),
                    ("partitions", [(("partition", "i32"), *_ERROR, ("leader", _LEADER))]),
                )
            ],
        ),
        ("nodes", [_NODES]),
    ),
)
_NAMED: Fields = (("topic", "text"), ("partitions", ["i32"]))
DESCRIBE_OFFSETS = Api(
    90,
    1,
    (("groups", [(("group", "text"), ("topics", [_NAMED]))]),),
    (
        *_THROTTLE,
        (
            "groups",
            [
                (
                    ("group", "text"),
                    (
                        "topics",
                        [
                            (
                                *(("topic", "text"), ("topic_id", "uuid")),
                                (
                                    "partitions",
                                    [
                                        (
                                            *(
                                                ("partition", "i32"),
                                                ("start", "i64"),
                                                ("leader_epoch", "i32"),
                                            ),
                                            *(("lag", "i64"), *_ERROR),
                                        )
                                    ],
                                ),
                            )
                        ],
                    ),
                    *_ERROR,
                )
            ],
        ),
    ),
)
ALTER_OFFSETS = Api(
    91,
    0,
    (
        ("group", "text"),
        ("topics", [(("topic", "text"), ("partitions", [(("partition", "i32"), ("start", "i64"))]))]),
    ),
    (
        *_THROTTLE,
        *_ERROR,
        (
            "topics",
            [
                (
                    *(("topic", "text"), ("topic_id", "uuid")),
                    ("partitions", [(("partition", "i32"), *_ERROR)]),
                )
            ],
        ),
    ),
)
DELETE_OFFSETS = Api(
    92,
    0,
    (("group", "text"), ("topics", [(("topic", "text"),)])),
    (*_THROTTLE, *_ERROR, ("topics", [(("topic", "text"), ("topic_id", "uuid"), *_ERROR)])),
)
_AT: Fields = (("topic_id", "uuid"), ("partitions", [(("partition", "i32"), ("leader_epoch", "i32"))]))
_STATE: Fields = (("partition", "i32"), *_ERROR, ("state_epoch", "i32"))
_BATCH: Fields = (("first", "i64"), ("last", "i64"), ("state", "i8"), ("count", "i16"))
READ_STATE = Api(
    84,
    0,
    (("group", "text"), ("topics", [_AT])),
    (
        (
            "topics",
            [
                (
                    ("topic_id", "uuid"),
                    ("partitions", [(*_STATE, ("start", "i64"), ("batches", [_BATCH]))]),
                )
            ],
        ),
    ),
)
READ_SUMMARY = Api(
    87,
    1,
    (("group", "text"), ("topics", [_AT])),
    (
        (
            "topics",
            [
                (
                    ("topic_id", "uuid"),
                    (
                        "partitions",
                        [(*_STATE, ("leader_epoch", "i32"), ("start", "i64"), ("complete", "i32"))],
                    ),
                )
            ],
        ),
    ),
)
DELETE_GROUPS = Api(
    42,
    2,
    (("groups", ["text"]),),
    (*_THROTTLE, ("groups", [(("group", "text"), ("error", "i16"))])),
)
FIND_COORDINATOR = Api(
    10,
    4,
    (("type", "i8"), ("keys", ["text"])),
    (
        *_THROTTLE,
        (
            "coordinators",
            [(("key", "text"), ("node_id", "i32"), ("host", "text"), ("port", "i32"), *_ERROR)],
        ),
    ),
)
ALTER_CONFIGS = Api(
    44,
    1,
    (
        (
            "resources",
            [
                (
                    *(("type", "i8"), ("name", "text")),
                    ("configs", [(("name", "text"), ("operation", "i8"), ("value", "text"))]),
                )
            ],
        ),
        ("validate_only", "bool"),
    ),
    (*_THROTTLE, ("resources", [(*_ERROR, ("type", "i8"), ("name", "text"))])),
)
