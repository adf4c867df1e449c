"""The resources that a code location with share groups needs, once."""

from collections.abc import Mapping

import dagster as dg

from sharequeue.dagster.io_manager import OutputIOManager
from sharequeue.dagster.resources import (
    IO_MANAGER,
    SETTINGS,
    SPARK,
    STATE,
    SettingsResource,
    SparkResource,
    StateResource,
)


def share_group_resources(
    *, home: str | None = None, master: str | None = None, conf: Mapping[str, str] | None = None
) -> dg.Definitions:
    """Return the resources of share groups, to merge with the other definitions of a code location.

    `conf` and `master` are Spark's. The keys have a prefix of their own, and the code location keeps its executor.
    The launch config of a run may have another `home`, for all resources.
    """
    # Otherwise the others would keep the home that is given here.
    settings = SettingsResource.configure_at_launch(home=home)
    spark = SparkResource(settings=settings, master=master, conf=dict(conf or {}))
    return dg.Definitions(
        resources={
            SETTINGS: settings,
            STATE: StateResource(settings=settings),
            SPARK: spark,
            IO_MANAGER: OutputIOManager(settings=settings, spark=spark),
        }
    )
