"""When does the group run? One job; a sensor on its lag and a nightly schedule, off until switched on."""

import dagster as dg

from orchestration.defs.flight_delays.group import GROUP, NAME, TAGS
from sharequeue.dagster.sensors import lag_sensor

# One process for all of a run: its assets share one JVM, and a kill of the run is a kill of everything it
# does.
flight_delays_job = dg.define_asset_job(
    NAME,
    selection=dg.AssetSelection.groups(NAME),
    executor_def=dg.in_process_executor,
    tags=TAGS,
    description=f"Works through share group {GROUP}: some rounds, then dead letters, reports, checks.",
)

flight_delays_lag = lag_sensor(GROUP, NAME)

flight_delays_nightly = dg.ScheduleDefinition(
    name=f"{NAME}_nightly",
    job_name=NAME,
    cron_schedule="0 3 * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="A run a night, for those who want their dead letters in the morning.",
)
