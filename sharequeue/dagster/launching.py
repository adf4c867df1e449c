"""Where the driver of a run is started: the field `run.launch` of a `defs.yaml`."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field

__all__ = ["Launch"]


class Launch(dg.Model, dg.Resolvable):
    """The Pipes client that starts the driver of `accepted` somewhere else. Without it, Dagster's process is the
    driver.
    """

    client: str = Field(description="The key of a Pipes client among the resources of the code location.")
    arguments: Mapping[str, Any] = Field(
        default={},
        description="The arguments of the client's `run`, such as `command` of a subprocess or of Kubernetes, "
        "`start_job_run_params` of EMR Serverless.",
    )
