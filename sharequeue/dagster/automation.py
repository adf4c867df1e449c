"""What starts the runs of a queue, and when its assets are stale: `automation` and `freshness` of a `defs.yaml`."""

from collections.abc import Sequence
from typing import Annotated

import dagster as dg
from pydantic import Field, field_validator

from sharequeue.dagster.yaml_values import Count, Seconds, Texts, bounded, duration, lasting, zone_of

Window = Annotated[str, lasting("1m")]
"""The age of an asset; Dagster has no shorter ones than a minute."""
Interval = Annotated[int, bounded(1, 86_400)]
"""Seconds between two ticks of a sensor: up to a day. A schedule is for what comes less often."""


class LagSensor(dg.Model, dg.Resolvable):
    """Requests a run while the group has records that nobody holds."""

    enabled: bool = Field(default=False, description="Whether it is switched on in a new deployment.")
    min_lag: Count = Field(default=1, description="Waiting records from which on a run is requested.")
    max_age_seconds: Seconds | None = Field(
        default=None,
        description="A run is also requested when anything has waited for this long since it was first seen.",
    )
    interval_seconds: Interval = Field(
        default=30, description="Seconds between two ticks, 86400 (a day) at most."
    )
    pause_after_failure_seconds: Annotated[float, bounded(0)] = Field(
        default=300,
        description="Seconds without a request after a run that failed, was cancelled or changed nothing.",
    )


class Schedule(dg.Model, dg.Resolvable):
    """Runs at set times, whatever the lag."""

    cron: Texts = Field(description="The times, such as `0 3 * * *`, or a list of such.")
    timezone: str = Field(default="UTC", description="The time zone of `cron`, such as `Europe/Berlin`.")
    enabled: bool = Field(default=False, description="Whether it is switched on in a new deployment.")

    @field_validator("timezone")
    @classmethod
    def _is_zone(cls, name: str) -> str:
        return zone_of(name)

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, given: Sequence[str] | str) -> Sequence[str] | str:
        if not given:
            raise ValueError("cron has no times: expected one such as `0 3 * * *`")
        for text in [given] if isinstance(given, str) else given:
            try:
                # Dagster also reads the yaml before it has filled in templates.
                if "{{" not in text:
                    dg.ScheduleDefinition(job_name="any", cron_schedule=text)
            except dg.DagsterInvalidDefinitionError:
                raise ValueError(
                    f"cron is {text!r}: expected minute, hour, day, month and weekday, each in its range, "
                    "such as `0 3 * * *`"
                ) from None
        return given


class Observe(dg.Model, dg.Resolvable):
    """Records the share-partition start offset (SPSO) and lag while nothing runs: no run, no Spark."""

    enabled: bool = Field(default=False, description="Whether it is switched on in a new deployment.")
    interval_seconds: Interval = Field(
        default=60, description="Seconds between two ticks, 86400 (a day) at most."
    )
    keep: Annotated[str, lasting("1m")] = Field(
        default="90d", description="The retention of the history of reports, such as `90d`."
    )


class Automation(dg.Model, dg.Resolvable):
    """Everything that starts runs, and writes reports, automatically."""

    sensor: LagSensor = Field(default_factory=LagSensor)
    observe: Observe = Field(default_factory=Observe)
    schedule: Schedule | None = None


class Freshness(dg.Model, dg.Resolvable):
    """The age at which `accepted`, and the report on SPSO and lag, are stale.

    `accepted` is as old as its last successful run, or as the last observation of an empty queue.
    """

    fail_window: Window = Field(description="The age at which it is stale, such as `2h`, `30m`, `1d`.")
    warn_window: Window | None = Field(
        default=None, description="The age of a warning; shorter than `fail_window`."
    )

    def policy(self) -> dg.FreshnessPolicy:
        """Dagster's freshness policy."""
        warn = None if self.warn_window is None else duration(self.warn_window)
        return dg.FreshnessPolicy.time_window(fail_window=duration(self.fail_window), warn_window=warn)
