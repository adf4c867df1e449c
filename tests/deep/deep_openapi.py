"""Requests of every kind that the OpenAPI document allows, and that it does not: no 500, no hang, no other answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.tokens import Tokens
from tests.fixtures.stack import MakeTopic
from tests.integration.service.test_service import serving

pytestmark = pytest.mark.timeout(900)

SECONDS = 10
"""Within which every request is answered: what asks the broker gives up after 5."""

HEALTH = list(HealthCheck)
load_all_checks()
CHECKED = [
    CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "unsupported_method",
        "ignored_auth",
    )
]


@pytest.fixture
def api(settings: Settings, private_database: Database, make_topic: MakeTopic) -> Iterator[Any]:
    """The document of a service that runs, with a group in its database."""
    Tokens(private_database).create("User:somebody")
    topic = make_topic(2)
    url = private_database.engine.url.render_as_string(hide_password=False)
    with serving(settings.replace(database_url=url)) as address:
        body = {"group_id": "0", "member_id": "0", "member_epoch": 0, "subscribed_topic_names": [topic]}
        assert httpx.post(f"{address}/v1/share-group-heartbeat", json=body).json()["error_code"] == 0
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


def test_every_request_has_an_answer_of_the_document(api: Any, told: list[str]) -> None:
    """Whatever is asked, the answer is one that the document has, within seconds."""
    asked = 0
    for found in api.get_all_operations():
        operation = found.ok()
        for mode in GenerationMode:

            @examples(
                max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=HEALTH
            )
            @given(operation.as_strategy(generation_mode=mode))
            def answered(case: Any) -> None:
                nonlocal asked
                asked += 1
                case.call_and_validate(timeout=SECONDS, checks=CHECKED)

            # What takes nothing cannot be asked wrongly.
            with suppress(Unsatisfiable) if mode is GenerationMode.NEGATIVE else nullcontext():
                answered()
    told.append(f"openapi: {asked:,} requests of all kinds, each with an answer of the document")
    assert asked > 1000
