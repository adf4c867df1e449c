"""The OpenAPI document of the service, without its pages.

It is generated from the types that validate the requests (`bodies`, `admin_bodies`) and describe the responses
(`answers`), so that it always agrees with them. The service returns it at `/openapi.json`.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from sharequeue import __version__
from sharequeue.service.admin import OPERATIONS
from sharequeue.service.answers import (
    GroupAnswer,
    GroupsAnswer,
    HealthAnswer,
    HeartbeatAnswer,
    ReadyAnswer,
    Refusal,
    Refused,
)
from sharequeue.service.bodies import HeartbeatBody

__all__ = ["document", "rendered"]

_TEXT, _HTML = {"text/plain": {"schema": {"type": "string"}}}, {"text/html": {"schema": {"type": "string"}}}
_GROUP = {
    "name": "group_id",
    "in": "path",
    "required": True,
    "description": "The share group. Slashes in it stay as they are.",
    "schema": {"type": "string", "minLength": 1},
}
_STATES = {
    "name": "state",
    "in": "query",
    "description": "Some of Empty, Stable and Dead, with commas between them: only groups in these states.",
    "schema": {"type": "string"},
}
_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "get": [{}, {"token": []}, {"password": []}],
    "post": [{}, {"token": []}],
}
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token of `sharequeue tokens create`."},
    "password": {
        "type": "http",
        "scheme": "basic",
        "description": "Any name, and the token as the password, as browsers send it.",
    },
}
_MALFORMED = {"400": "The request is malformed, or names a host that is not allowed."}
_FAILURES = {
    **_MALFORMED,
    "401": "The token is invalid or has expired, or a required token is missing.",
    "403": "The scopes of the token do not include this request, or the caller may not see the group.",
    "500": "An unexpected error: the log of the service has the cause.",
    "503": "The database does not answer.",
}
_OF_METHOD = {
    "get": {"429": "The principal sends too many requests: wait for the seconds in `Retry-After`."},
    "post": {"415": "The body is not sent as application/json."},
}
_NOT_FOUND = {"404": "There is no such group."}


@cache
def rendered() -> bytes:
    """Return the document as sent. It is cached, because anyone may request it and generating it is slow."""
    return json.dumps(document()).encode()


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    schemas: dict[str, Any] = {}

    def content(*types: Any) -> dict[str, Any]:
        """Describe JSON of one of these types; a description stays as it is."""
        if isinstance(types[0], dict):
            return types[0]
        references = []
        for each in types:
            found = TypeAdapter(each).json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(found.pop("$defs", {}))
            schemas[each.__name__] = found
            references.append({"$ref": f"#/components/schemas/{each.__name__}"})
        return {"application/json": {"schema": references[0] if len(types) == 1 else {"anyOf": references}}}

    def operation(method: str, summary: str, *answers: Any, **more: Any) -> dict[str, Any]:
        """Describe an operation for callers with a token."""
        failures = _FAILURES | _OF_METHOD[method] | (_NOT_FOUND if more.get("parameters") == [_GROUP] else {})
        refused = {
            status: {"description": why, "content": content(Refusal)} for status, why in failures.items()
        }
        responses = {"200": {"description": "The response.", "content": content(*answers)}, **refused}
        return {method: {"summary": summary, "security": _SECURITY[method], "responses": responses, **more}}

    def posted(summary: str, description: str, body: Any, *answers: Any) -> dict[str, Any]:
        asked = {"required": True, "content": content(body)}
        return operation("post", summary, *answers, description=description, requestBody=asked)

    def of_group(summary: str, answer: Any) -> dict[str, Any]:
        return operation("get", summary, answer, parameters=[_GROUP])

    def probe(summary: str, answer: Any, **failing: Any) -> dict[str, Any]:
        """Describe an operation that is open to everybody."""
        found = operation("get", summary, answer, security=[{}])
        kept = {status: found["get"]["responses"][status] for status in ("200", "400", "429")}
        found["get"]["responses"] = kept | failing
        return found

    not_ready = {"description": "Not ready: the database does not answer.", "content": content(ReadyAnswer)}
    paths = {
        "/v1/share-group-heartbeat": posted(
            "ShareGroupHeartbeat",
            "Join, stay or leave. Refused heartbeats have status 200, too: read `error_code`.",
            HeartbeatBody,
            HeartbeatAnswer,
        ),
        **{
            each.path: posted(
                (each.body.__doc__ or "").rstrip("."), each.do.__doc__ or "", each.body, each.answer, Refused
            )
            for each in OPERATIONS
        },
        "/v1/groups": operation("get", "List groups", GroupsAnswer, parameters=[_STATES]),
        "/v1/groups/{group_id}": of_group("A group with its members and share-partitions", GroupAnswer),
        "/v1/reports/{group_id}": of_group("The report of a group", _HTML),
        "/health": probe("The state of the process", HealthAnswer),
        "/ready": probe("Whether members can send heartbeats here", ReadyAnswer, **{"503": not_ready}),
        "/metrics": operation("get", "The metrics, for Prometheus", _TEXT),
        "/openapi.json": probe("This document", {"application/json": {"schema": {"type": "object"}}}),
    }
    title = "sharequeue, the coordinator service"
    what = "Kafka's requests of share groups as JSON, fields in snake case."
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": what},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SCHEMES},
    }
