"""Share groups as Dagster has them, for tests."""

from __future__ import annotations

from typing import Any

from sharequeue.dagster import ShareGroup


def share_group(group: str, **given: Any) -> ShareGroup:
    """A share group with what a test does not care about filled in."""
    return ShareGroup(
        **{
            "group": group,
            "topics": ["flights"],
            "pipeline": "pipelines.flights.pipeline:flight_delays",
            **given,
        }
    )
