"""How do flights that were given up come back? By hand, once the cause is gone: a job that runs on demand only."""

import dagster as dg

from orchestration.defs.flight_delays.group import GROUP, NAME, TAGS
from sharequeue.dagster.redrive import redrive_asset

redriven = redrive_asset(GROUP, NAME, TAGS)

redrive_job = dg.define_asset_job(
    f"{NAME}_redrive",
    selection=dg.AssetSelection.assets(redriven),
    executor_def=dg.in_process_executor,
    tags=TAGS,
    description=f"Puts dead letters of share group {GROUP} back to work; a dry run unless told to execute.",
)
