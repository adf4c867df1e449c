"""The table of endpoints: every request that the service serves, in one entry each.

The routes (`app`), the scope and the cost of each request (`admission`), the OpenAPI document and the list in
`docs/reference/http.md` come from it. An entry without a scope raises TypeError, so that the service does not start.
"""

from __future__ import annotations

import json
from functools import cache

from starlette.responses import Response

from sharequeue.service.call import Call, Endpoint, operation
from sharequeue.service.openapi import ANY_OBJECT, HTML, TEXT, document
from sharequeue.service.operations import configs, groups, heartbeat, offsets
from sharequeue.service.pages.data_docs_page import data_docs
from sharequeue.service.pages.group_page import group
from sharequeue.service.pages.letters_page import dead_letters
from sharequeue.service.pages.overview_page import overview
from sharequeue.service.pages.report_page import report
from sharequeue.service.pages.requests import made_by
from sharequeue.service.pages.sign_in_page import sign_in
from sharequeue.service.probes import HealthAnswer, ReadyAnswer, health, metrics, ready

__all__ = ["ENDPOINTS"]


async def openapi(call: Call) -> Response:
    """Return the OpenAPI document of all endpoints but the pages: for generated clients and for tools."""
    return Response(_document(), media_type="application/json")


@cache
def _document() -> bytes:
    """Return the document as sent. It is cached, because anyone may request it and generating it is slow."""
    return json.dumps(document(ENDPOINTS)).encode()


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/share-group-heartbeat",
        scope="heartbeat",
        cost=1,
        handler=heartbeat.share_group_heartbeat,
        summary="ShareGroupHeartbeat",
        body=heartbeat.HeartbeatBody,
        answers=(heartbeat.HeartbeatAnswer,),
    ),
    operation(
        "/v1/share-group-describe",
        scope="describe",
        do=groups.describe_groups,
        body=groups.DescribeBody,
        answer=groups.DescribeAnswer,
    ),
    operation(
        "/v1/describe-share-group-offsets",
        scope="describe",
        do=offsets.describe_offsets,
        body=offsets.DescribeOffsetsBody,
        answer=offsets.DescribeOffsetsAnswer,
    ),
    operation(
        "/v1/alter-share-group-offsets",
        scope="admin",
        do=offsets.alter_offsets,
        body=offsets.AlterOffsetsBody,
        answer=offsets.AlterOffsetsAnswer,
    ),
    operation(
        "/v1/delete-share-group-offsets",
        scope="admin",
        do=offsets.delete_offsets,
        body=offsets.DeleteOffsetsBody,
        answer=offsets.DeleteOffsetsAnswer,
    ),
    operation(
        "/v1/delete-groups",
        scope="admin",
        do=groups.delete_groups,
        body=groups.DeleteGroupsBody,
        answer=groups.DeleteGroupsAnswer,
    ),
    operation(
        "/v1/describe-configs",
        scope="describe",
        do=configs.describe_configs,
        body=configs.DescribeConfigsBody,
        answer=configs.DescribeConfigsAnswer,
    ),
    operation(
        "/v1/incremental-alter-configs",
        scope="admin",
        do=configs.alter_configs,
        body=configs.AlterConfigsBody,
        answer=configs.AlterConfigsAnswer,
    ),
    Endpoint(
        "GET",
        "/v1/groups",
        scope="describe",
        handler=groups.list_groups,
        summary="List groups",
        query={
            "state": "Some of Empty, Stable and Dead, with commas between them: only groups in these states."
        },
        answers=(groups.GroupsAnswer,),
    ),
    Endpoint(
        "GET",
        "/v1/groups/{group_id:group}",
        scope="describe",
        handler=groups.group,
        summary="A group with its members and share-partitions",
        answers=(groups.GroupAnswer,),
    ),
    Endpoint(
        "GET",
        "/v1/reports/{group_id:group}",
        scope="describe",
        handler=report,
        summary="The report of a group",
        answers=(HTML,),
    ),
    Endpoint(
        "GET",
        "/health",
        scope="metrics",
        cost=0,
        is_open=True,
        handler=health,
        summary="The state of the process",
        answers=(HealthAnswer,),
    ),
    Endpoint(
        "GET",
        "/ready",
        scope="metrics",
        cost=0,
        is_open=True,
        handler=ready,
        summary="Whether members can send heartbeats here",
        answers=(ReadyAnswer,),
        failures={503: ("Not ready: the database does not answer.", ReadyAnswer)},
    ),
    Endpoint(
        "GET",
        "/metrics",
        scope="metrics",
        handler=metrics,
        summary="The metrics, for Prometheus",
        answers=(TEXT,),
    ),
    Endpoint(
        "GET",
        "/openapi.json",
        scope="describe",
        cost=0,
        is_open=True,
        handler=openapi,
        summary="This document",
        answers=(ANY_OBJECT,),
    ),
    Endpoint("GET", "/", scope="describe", handler=made_by(overview)),
    Endpoint("GET", "/groups/{group_id:group}", scope="describe", handler=made_by(group)),
    Endpoint("GET", "/dead-letters/{group_id:group}", scope="describe", handler=made_by(dead_letters)),
    Endpoint("GET", "/v1/data-docs/{name}/{path:path}", scope="describe", handler=made_by(data_docs)),
    Endpoint("GET", "/sign-in", scope="describe", handler=made_by(sign_in)),
)
