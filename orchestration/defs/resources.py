"""The resources of every share group in this code location."""

import dagster as dg

from sharequeue.dagster import share_group_resources


@dg.definitions
def resources() -> dg.Definitions:
    """Return the settings, the state in Postgres, and Spark; all steps of a run share one Spark session."""
    one_process = dg.Definitions(executor=dg.in_process_executor)
    return dg.Definitions.merge(share_group_resources(), one_process)
