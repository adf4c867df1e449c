"""The OpenAPI document of the service.

It is generated from the types that validate the requests (`bodies`, `admin_bodies`) and describe the responses
(`answers`), so that it always agrees with them. The service returns it at `/openapi.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from sharequeue import __version__
from sharequeue.reports.data_docs import CONTENT_TYPES
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

_SCHEMA = "#/components/schemas/{model}"
_TEXT, _HTML = {"text/plain": {"schema": {"type": "string"}}}, {"text/html": {"schema": {"type": "string"}}}
_FILES = ("text/css", "text/javascript", "image/svg+xml")
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
_READING: list[dict[str, list[str]]] = [{}, {"token": []}, {"password": []}]
_TOO_OFTEN = "The principal sends too many requests: wait for the seconds in `Retry-After`."
_FAILURES = {
    "400": "The request is malformed, or names a host that is not allowed.",
    "401": "The token is invalid or has expired, or a required token is missing.",
    "403": "The scopes of the token do not include this request.",
    "500": "An unexpected error: the log of the service has the cause.",
    "503": "The database does not answer.",
}


_CLOSED = {"403": "The caller, or its token, may not see the group.", "404": "There is no such group."}


def _query(name: str, description: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": {"type": kind}}


_UPDATES = _query("updates", "`off`: the page does not update itself.")
_PAGES: dict[str, tuple[str, bool, list[dict[str, Any]]]] = {
    "/": (
        "The page of all groups",
        False,
        [_query("q", "A part of the name."), _query("after", "Groups after this one, by name."), _UPDATES],
    ),
    "/groups/{group_id}": (
        "The page of a group",
        True,
        [
            _query("page", "The number of the page of share-partitions.", "integer"),
            _query("sort", "`lag`: most lag first."),
            _UPDATES,
        ],
    ),
    "/dead-letters/{group_id}": (
        "The page of a group's dead letters, or of one of them",
        True,
        [
            _query("cause", "`rejected` or `exceeded`."),
            _query("topic", "The source topic."),
            _query("before", "The end of the page: `partition:offset` for each partition of the topic."),
            _query("partition", "Of one letter.", "integer"),
            _query("offset", "Of one letter.", "integer"),
        ],
    ),
    "/share-partitions/{group_id}": (
        "The page of a share-partition",
        True,
        [_query("topic", "Its topic."), _query("partition", "Its number.", "integer"), _UPDATES],
    ),
}
"""Pages for people: their content may change at any time."""
_DATA_DOCS = [
    {
        "name": "name",
        "in": "path",
        "required": True,
        "description": "The share group, escaped as in a URL, with `~` in place of `%`.",
        "schema": {"type": "string", "minLength": 1},
    },
    {
        "name": "path",
        "in": "path",
        "required": True,
        "description": "The file, such as `index.html`.",
        "schema": {"type": "string", "minLength": 1},
    },
]


@cache
def rendered() -> bytes:
    """Return the document as sent. It is cached, because anyone may request it and generating it is slow."""
    return json.dumps(document()).encode()


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of all paths of the service."""
    schemas = _Schemas()
    paths: dict[str, Any] = {
        "/v1/share-group-heartbeat": {
            "post": schemas.posted(
                "ShareGroupHeartbeat",
                "Join, stay or leave. Refused heartbeats have status 200, too: read `error_code`.",
                HeartbeatBody,
                HeartbeatAnswer,
            )
        },
        "/v1/groups": {"get": schemas.got("List groups", GroupsAnswer, parameters=[_STATES])},
        "/v1/groups/{group_id}": {
            "get": schemas.got("A group with its members and share-partitions", GroupAnswer, of_group=True)
        },
        "/v1/reports/{group_id}": {"get": schemas.got("The report of a group", _HTML, of_group=True)},
        "/health": {"get": schemas.got("The state of the process", HealthAnswer, ours=False)},
        "/ready": {"get": schemas.got("Whether members can send heartbeats here", ReadyAnswer, ours=False)},
        "/metrics": {"get": schemas.got("The metrics, for Prometheus", _TEXT)},
        "/pages/{name}": {
            "get": {
                "summary": "The style sheet, the script and the icon of the pages",
                "security": [{}],
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
                ],
                "responses": {
                    "200": {
                        "description": "The file.",
                        "content": dict.fromkeys(_FILES, _TEXT["text/plain"]),
                    },
                    "400": {"description": _FAILURES["400"], "content": schemas.content(Refusal)},
                    "404": {"description": "There is no such file.", "content": _HTML},
                },
            }
        },
        "/openapi.json": {
            "get": schemas.got(
                "This document", {"application/json": {"schema": {"type": "object"}}}, ours=False
            )
        },
    }
    paths["/ready"]["get"]["responses"]["503"] = {
        "description": "Not ready: the database does not answer.",
        "content": schemas.content(ReadyAnswer),
    }
    for path, (summary, of_group, more) in _PAGES.items():
        paths[path] = {"get": schemas.page(summary, of_group, more)}
    docs = schemas.page("A file of a group's Data Docs, by Great Expectations", False, _DATA_DOCS)
    docs["responses"] |= schemas.page("", True, [])["responses"]
    docs["responses"]["200"]["content"] = {
        kind.partition(";")[0]: {"schema": {"type": "string"}} for kind in CONTENT_TYPES.values()
    }
    paths["/v1/data-docs/{name}/{path}"] = {"get": docs}
    signed_in = schemas.page("Ask the browser for a token, then redirect to the first page", False, [])
    signed_in["responses"]["303"] = {"description": "The browser has sent a token: redirect to the page."}
    del signed_in["responses"]["200"]
    paths["/sign-in"] = {"get": signed_in}
    for each in OPERATIONS:
        what = (each.body.__doc__ or "").rstrip(".")
        paths[each.path] = {
            "post": schemas.posted(what, (each.do.__doc__ or "").strip(), each.body, each.answer, Refused)
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sharequeue, the coordinator service",
            "version": __version__,
            "description": "Kafka's requests of share groups as JSON, fields in snake case.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `sharequeue tokens create`.",
                },
                "password": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "Any name, and the token as the password, as browsers send it.",
                },
            },
        },
    }


class _Schemas:
    """The schemas of the document, and the parts of it that refer to them."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def posted(
        self, summary: str, description: str, body: type[BaseModel], *answers: type[Any]
    ) -> dict[str, Any]:
        """Return the operation of a POST path: its request, and its response, one of `answers` or an error."""
        return {
            "summary": summary,
            "description": description,
            "security": [{}, {"token": []}],
            "requestBody": {"required": True, "content": self.content(body)},
            "responses": {
                "200": {"description": "The response.", "content": self.content(*answers)},
                **self._failures({**_FAILURES, "415": "The body is not sent as application/json."}),
            },
        }

    def got(
        self,
        summary: str,
        answer: type[Any] | Mapping[str, Any],
        *,
        parameters: list[dict[str, Any]] | None = None,
        of_group: bool = False,
        ours: bool = True,
    ) -> dict[str, Any]:
        """Return the operation of a GET path; one of `ours` needs a token, and fails without the database."""
        failures = {"429": _TOO_OFTEN, **(_FAILURES if ours else {"400": _FAILURES["400"]})}
        if of_group:
            failures |= _CLOSED
        content = answer if isinstance(answer, Mapping) else self.content(answer)
        return {
            "summary": summary,
            "security": _READING if ours else [{}],
            "parameters": [_GROUP] if of_group else (parameters or []),
            "responses": {
                "200": {"description": "The answer.", "content": content},
                **self._failures(failures),
            },
        }

    def page(self, summary: str, of_group: bool, parameters: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the operation of a page for people. Errors are pages, too."""
        failures = {"429": _TOO_OFTEN, **_FAILURES, **({**_CLOSED} if of_group else {})}
        return {
            "summary": summary,
            "security": _READING,
            "parameters": [*([_GROUP] if of_group else []), *parameters],
            "responses": {
                "200": {"description": "The page.", "content": _HTML},
                **{
                    status: {
                        "description": why,
                        # A host that is not allowed is refused before the path is known.
                        "content": {**_HTML, **(self.content(Refusal) if status == "400" else {})},
                    }
                    for status, why in sorted(failures.items())
                },
            },
        }

    def content(self, *types: type[Any]) -> dict[str, Any]:
        """Return the description of JSON of one of these types."""
        found = [self._reference(each) for each in types]
        return {"application/json": {"schema": found[0] if len(found) == 1 else {"anyOf": found}}}

    def _failures(self, of: Mapping[str, str]) -> dict[str, Any]:
        return {
            status: {"description": why, "content": self.content(Refusal)}
            for status, why in sorted(of.items())
        }

    def _reference(self, of: type[Any]) -> dict[str, str]:
        found = TypeAdapter(of).json_schema(ref_template=_SCHEMA)
        self.definitions |= found.pop("$defs", {})
        self.definitions[of.__name__] = found
        return {"$ref": _SCHEMA.format(model=of.__name__)}
