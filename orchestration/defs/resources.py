"""The resources of every definition in this code location."""

import dagster as dg

from sharequeue.dagster.resources import SettingsResource, SparkResource, StateResource


@dg.definitions
def resources() -> dg.Definitions:
    """``settings``, ``queue`` (the state in Postgres) and ``spark``."""
    settings = SettingsResource()
    return dg.Definitions(
        resources={
            "settings": settings,
            "queue": StateResource(settings=settings),
            "spark": SparkResource(settings=settings),
        }
    )
