"""The OpenAPI document of the service, without its pages.

It is generated from the table of endpoints, and from the types that validate their requests and describe their
responses, so that it always agrees with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from sharequeue import __version__
from sharequeue.service.call import Endpoint
from sharequeue.service.messages import Refusal

__all__ = ["ANY_OBJECT", "HTML", "TEXT", "document"]

TEXT = {"text/plain": {"schema": {"type": "string"}}}
HTML = {"text/html": {"schema": {"type": "string"}}}
ANY_OBJECT = {"application/json": {"schema": {"type": "object"}}}
"""The contents of responses that no type describes."""

_GROUP = {
    "name": "group_id",
    "in": "path",
    "required": True,
    "description": "The share group. Slashes in it stay as they are.",
    "schema": {"type": "string", "minLength": 1},
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
_FAILURES = {
    "400": "The request is malformed, or names a host that is not allowed.",
    "401": "The token is invalid or has expired, or a required token is missing.",
    "403": "The scopes of the token do not include this request, or the caller may not see the group.",
    "500": "An unexpected error: the log of the service has the cause.",
    "503": "The database or the broker does not answer.",
}
_OF_METHOD = {
    "get": {"429": "The principal sends too many requests: wait for the seconds in `Retry-After`."},
    "post": {"415": "The body is not sent as application/json."},
}
_NOT_FOUND = {"404": "There is no such group."}
_OF_OPEN = ("400", "429")
"""The failures of endpoints that are open to everybody."""


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of those endpoints that have a summary."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for each in endpoints:
        if each.summary:
            paths.setdefault(each.template, {})[each.method.lower()] = _operation(each, schemas)
    title = "sharequeue, the coordinator service"
    what = "Kafka's requests of share groups as JSON, fields in snake case."
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": what},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SCHEMES},
    }


def _operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    method = endpoint.method.lower()
    found: dict[str, Any] = {
        "summary": endpoint.summary,
        "security": [{}] if endpoint.is_open else _SECURITY[method],
        "responses": _responses(endpoint, schemas),
    }
    if endpoint.body is not None:
        found["description"] = endpoint.description
        found["requestBody"] = {"required": True, "content": _content(schemas, endpoint.body)}
    if parameters := _parameters(endpoint):
        found["parameters"] = parameters
    return found


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    of_path = [_GROUP] if "{group_id}" in endpoint.template else []
    of_query = [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in endpoint.query.items()
    ]
    return [*of_path, *of_query]


def _responses(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    failures = _FAILURES | _OF_METHOD[endpoint.method.lower()]
    if "{group_id}" in endpoint.template:
        failures |= _NOT_FOUND
    if endpoint.is_open:
        failures = {status: why for status, why in failures.items() if status in _OF_OPEN}
    described = {
        "200": ("The response.", endpoint.answers),
        **{status: (why, (Refusal,)) for status, why in failures.items()},
        **{str(status): (why, (answer,)) for status, (why, answer) in endpoint.failures.items()},
    }
    return {
        status: {"description": why, "content": _content(schemas, *answers)}
        for status, (why, answers) in described.items()
    }


def _content(schemas: dict[str, Any], *types: Any) -> dict[str, Any]:
    """Describe JSON of one of these types, and add their schemas; a content stays as it is."""
    if isinstance(types[0], dict):
        return types[0]
    references = []
    for each in types:
        found = TypeAdapter(each).json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(found.pop("$defs", {}))
        schemas[each.__name__] = found
        references.append({"$ref": f"#/components/schemas/{each.__name__}"})
    return {"application/json": {"schema": references[0] if len(types) == 1 else {"anyOf": references}}}
