"""Speak the protocol of share groups to a broker, request by request.

Kafka's wire protocol, as much of it as the requests of `wire_apis` need. A client library would prefetch and hide the
ranges and errors that are compared here.
"""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from tests.conformance.wire_apis import Api, Fields

_NUMBERS = {"i8": ">b", "i16": ">h", "i32": ">i", "i64": ">q", "bool": ">?"}


class Connection:
    """One socket to a broker. A context; closing it is a connection that is lost."""

    def __init__(self, address: str, client_id: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self._client_id = client_id.encode()
        self._sent = 0

    def close(self) -> None:
        """Hang up without a word."""
        self._socket.close()

    def ask(self, api: Api, **request: Any) -> dict[str, Any]:
        """Send one request and return its response."""
        self._sent += 1
        name = self._client_id
        header = struct.pack(">hhih", api.key, api.version, self._sent, len(name)) + name + b"\0"
        body = header + _encode(api.request, request)
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        (length,) = struct.unpack(">i", self._read(4))
        reader = _Reader(self._read(length))
        assert reader.number("i32") == self._sent
        reader.tags()
        return reader.fields(api.response)

    def _read(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            more = self._socket.recv(length - len(found))
            if not more:
                raise ConnectionError("the broker hung up")
            found += more
        return found


def _unsigned(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes((value & 127 | 128,))
        value >>= 7
    return out + bytes((value,))


def _encode(kind: Any, value: Any) -> bytes:
    """A value in the flexible encoding: compact lengths, and no tagged fields."""
    if isinstance(kind, list):
        if value is None:
            return b"\0"
        return _unsigned(len(value) + 1) + b"".join(_encode(kind[0], each) for each in value)
    if isinstance(kind, tuple):
        assert isinstance(value, Mapping)
        return b"".join(_encode(each, value.get(name)) for name, each in kind) + b"\0"
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], value)
    if kind == "uuid":
        return uuid.UUID(str(value)).bytes
    assert kind == "text"
    return b"\0" if value is None else _unsigned(len(value.encode()) + 1) + value.encode()


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, length: int) -> bytes:
        self._at += length
        return self._content[self._at - length : self._at]

    def number(self, kind: str) -> Any:
        form = _NUMBERS[kind]
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def tags(self) -> None:
        for _ in range(self.unsigned()):
            self.unsigned()
            self.take(self.unsigned())

    def fields(self, fields: Fields) -> dict[str, Any]:
        found = {name: self.value(kind) for name, kind in fields}
        self.tags()
        return found

    def value(self, kind: Any) -> Any:
        if isinstance(kind, list):
            return [self.value(kind[0]) for _ in range(max(0, self.unsigned() - 1))]
        if isinstance(kind, tuple):
            if kind[0] == "nullable":
                return None if self.number("i8") < 0 else self.fields(kind[1])
            return self.fields(kind)
        if kind in _NUMBERS:
            return self.number(kind)
        if kind == "uuid":
            return str(uuid.UUID(bytes=self.take(16)))
        length = self.unsigned()
        content = self.take(max(0, length - 1))
        return content if kind == "bytes" else content.decode() if length else None


def data_offsets(records: bytes) -> Iterator[tuple[int, int, set[int]]]:
    """The log batches in a response: first and last offset, and which offsets have a record that is data."""
    at = 0
    while at + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, at)
        attributes, last = struct.unpack_from(">hi", records, at + 21)
        (count,) = struct.unpack_from(">i", records, at + 57)
        reader = _Reader(records[at + 61 : at + 12 + length])
        found = set()
        for _ in range(count):
            inside = _Reader(reader.take(_signed(reader)))
            inside.take(1)
            _signed(inside)
            found.add(base + _signed(inside))
        yield base, base + last, set() if attributes & 32 else found
        at += 12 + length


def _signed(reader: _Reader) -> int:
    value = reader.unsigned()
    return (value >> 1) ^ -(value & 1)
