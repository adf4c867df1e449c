"""Check responses against the OpenAPI document of the service."""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator

from sharequeue.service.endpoints import ENDPOINTS
from sharequeue.service.openapi import document


def conforming(response: Any) -> None:
    """Assert that a response has a status and a body of the document, and no field beyond it."""
    path, method = unquote(response.request.url.path), response.request.method.lower()
    known: dict[str, Any] = next(
        (methods for of, methods in _strict()["paths"].items() if _is_of(path, of)), {}
    )
    if method not in known:
        return  # nothing of ours
    answers = known[method]["responses"]
    assert str(response.status_code) in answers, f"{path}: {response.status_code} is not in the document"
    content = answers[str(response.status_code)].get("content")
    if content is None:
        return  # it leads elsewhere
    kind = response.headers["content-type"].partition(";")[0]
    assert kind in content, f"{path}: {kind} is not in the document"
    if kind == "application/json":
        response.read()
        schema = {**content[kind]["schema"], "components": _strict()["components"]}
        Draft202012Validator(schema).validate(response.json())


def _is_of(path: str, template: str) -> bool:
    return re.fullmatch(re.sub(r"\\{\w+\\}", ".+", re.escape(template)), path) is not None


@cache
def _strict() -> dict[str, Any]:
    """The document, in which no answer has other fields than those it names."""
    found = document(ENDPOINTS)
    for schema in found["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return found
