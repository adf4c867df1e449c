"""The resources of every share group in this code location."""

import dagster as dg

from sharequeue.dagster import share_group_resources


@dg.definitions
def resources() -> dg.Definitions:
    """Define `settings`, `queue` (the state in Postgres) and `spark`."""
    return share_group_resources()
