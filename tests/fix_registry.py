"""A schema registry for tests: the part of Confluent's HTTP interface that decoding asks for, on a port of its own.

No registry comes with the package indexes that the tests may use. What it answers, codes of errors included, is what
Confluent's documentation says of `GET /schemas/ids/{id}` and `GET /subjects/{subject}/versions/latest`.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest


class RegistryServer:
    """What it holds, what it was asked, and how it is to fail."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, int] = {}
        self.asked: list[str] = []
        self.login: str | None = None
        """`user:password` or `Bearer …` that it wants; None for none."""
        self.failures = 0
        """So many of the next answers are HTTP 503."""
        registry = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, found = registry.answer(self.path, self.headers.get("Authorization"))
                body = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def register(self, subject: str, schema: object, schema_id: int, kind: str = "AVRO") -> None:
        """Have a schema, the latest of its subject."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas[schema_id] = {"schema": text} | ({"schemaType": kind} if kind != "AVRO" else {})
        self.subjects[subject] = schema_id

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        """Return status and body."""
        self.asked.append(path)
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50003, "message": "Error while forwarding the request to the primary"}
        basic = f"Basic {base64.b64encode((self.login or '').encode()).decode()}"
        if self.login and authorization not in (self.login, basic):
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match path.strip("/").split("/"):
            case ["schemas", "ids", text]:
                found = self.schemas.get(int(text))
                return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
            case ["subjects", name, "versions", "latest"]:
                schema_id = self.subjects.get(unquote(name))
                if schema_id is None:
                    return 404, {"error_code": 40401, "message": f"Subject '{name}' not found."}
                return 200, {"subject": unquote(name), "version": 1, "id": schema_id} | self.schemas[
                    schema_id
                ]
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@pytest.fixture
def registry_server() -> Iterator[RegistryServer]:
    """Give an empty registry."""
    registry = RegistryServer()
    thread = threading.Thread(target=registry.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield registry
    registry.server.shutdown()
    registry.server.server_close()
    thread.join()


def framed(schema_id: int, body: bytes) -> bytes:
    """Return bytes as the serializers of a registry write them."""
    return b"\0" + schema_id.to_bytes(4, "big") + body


def number(value: int) -> bytes:
    """Return an int or a long as Avro writes it, and Protobuf's zigzag."""
    zigzag, made = (value << 1) ^ (value >> 63), bytearray()
    while zigzag > 0x7F:
        made.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*made, zigzag])


def text(value: str) -> bytes:
    """Return a string as Avro writes it."""
    return number(len(value.encode())) + value.encode()
