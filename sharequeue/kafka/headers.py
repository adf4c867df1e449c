"""Read the headers of consumed messages: the only place that calls `Message.headers()`.

A header's name is bytes, and producers in other languages send bytes that are not UTF-8. For such a message
confluent-kafka (up to 2.16.1) returns a list with NULL in place of the name, and leaves the UnicodeDecodeError
pending. Called from C, as here, that becomes a SystemError at once. Called from Python code that ran a few times, the
interpreter does not check, and the error surfaces in other code. A second call returns the list, and touching
its NULL ends the process. So the list is replaced with a remark, which also keeps the failure with the message.

This module is sent to Spark's executors by value: it needs nothing of this package.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import methodcaller
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Message

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]

UNDECODABLE = "sharequeue.record.headers.undecodable"
"""``true``: a header's name is not UTF-8, so the record's headers could not be read. This header stands for all."""
REMARK: Headers = ((UNDECODABLE, b"true"),)
PROBLEM = "the name of a header is not UTF-8, so the headers cannot be read"

_call = methodcaller("headers")


class Undecodable(list[tuple[str, str | bytes | None]]):
    """The remark in place of headers that could not be read."""

    def __init__(self) -> None:
        super().__init__(REMARK)


def read_headers(messages: Iterable[Message]) -> list[Any]:
    """Return the headers of each message as confluent-kafka has them; `Undecodable` if they cannot be read."""
    found: list[Any] = []
    all_of = list(messages)
    each_headers = map(_call, all_of)
    while len(found) < len(all_of):
        try:
            # One call in C for all of them; after a failure it goes on with the next message.
            found.extend(each_headers)
        except SystemError:
            remark = Undecodable()
            all_of[len(found)].set_headers(remark)
            found.append(remark)
    return found


def headers_of(message: Message) -> Headers:
    """Return all headers of a message in their order; `REMARK` if they cannot be read."""
    [found] = read_headers([message])
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in found or ())
