"""What does a share group's `defs.yaml` say?

One model, for YAML and for Python: `ShareGroup(group=…, topics=[…], pipeline="…")`. Everything that can be wrong
without a server or Spark is refused when it is made, with the field and what would be right. Nothing is imported that
the texts name (`pipeline`, `summaries`): a process that only loads definitions does not pay for Spark.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import AfterValidator, Field, field_validator, model_validator

from sharequeue.dagster.names import GROUP_TAG, dagster_name
from sharequeue.database import Database
from sharequeue.errors import InvalidConfig
from sharequeue.groups.configs import GroupConfigs, alter_group_configs, validate_group_config
from sharequeue.names import too_long, topic_name_problem
from sharequeue.references import NoSuchObject, Reference

Config = str | int | float | bool


def _bounded(least: float, most: float | None = None, *, above: bool = False) -> AfterValidator:
    """A bound of a number. Not pydantic's own: Dagster reads a yaml into a copy of the model in which every field may
    also be a text, and there pydantic's bounds end in a TypeError that names no field.
    """
    expected = f"more than {least:g}" if above else f"at least {least:g}"
    expected += "" if most is None else f" and at most {most:g}"

    def check(value: Any) -> Any:
        if isinstance(value, int | float) and not (
            (value > least if above else value >= least) and (most is None or value <= most)
        ):
            raise ValueError(f"expected {expected}, and it is {value:g}")
        return value

    return AfterValidator(check)


Count = Annotated[int, _bounded(1)]
NotNegative = Annotated[int, _bounded(0)]
Seconds = Annotated[float, _bounded(0, above=True)]
Share = Annotated[float, _bounded(0, 1, above=True)]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_PLAIN = re.compile(r"[A-Za-z0-9_]+")


class Run(dg.Model, dg.Resolvable):
    """How much one run does at most; what is left is for the next one."""

    max_seconds: Seconds = Field(
        default=600, description="No round begins after so many seconds; the last one is finished."
    )
    max_records: Count = Field(default=10_000_000, description="Records leased in one round.")
    max_bytes: NotNegative | None = Field(
        default=None,
        description="Bytes leased in one round, 0 without a bound; if not given, as the job or its group says.",
    )
    deliveries_per_run: Count | None = Field(
        default=None,
        description="How often one run leases a record that it has released; if not given, as the pipeline says.",
    )
    replaces: str | None = Field(
        default=None,
        description="The pipeline that worked on the group before, if this one takes its place.",
    )
    pool: str | None = Field(
        default="spark",
        description="The concurrency pool of what uses Spark; its limit is the deployment's. `null`: no pool.",
    )


class LagSensor(dg.Model, dg.Resolvable):
    """Asks for a run while the group has records that nobody holds."""

    enabled: bool = Field(
        default=False, description="Whether it runs in a new deployment without being switched on."
    )
    min_lag: Count = Field(default=1, description="Records that wait before a run is asked for.")
    max_age_seconds: Seconds | None = Field(
        default=None,
        description="A run is also asked for when anything has waited for so long since it was seen.",
    )
    interval_seconds: Count = Field(default=30, description="Seconds between two looks.")
    pause_after_failure_seconds: Annotated[float, _bounded(0)] = Field(
        default=300,
        description="Seconds after a run that failed, was cancelled or has changed nothing before the next one is "
        "asked for.",
    )


class Schedule(dg.Model, dg.Resolvable):
    """Runs at set times, whatever the lag."""

    cron: str = Field(description="When, such as `0 3 * * *`.")
    timezone: str = Field(default="UTC", description="The time zone of `cron`, such as `Europe/Berlin`.")
    enabled: bool = Field(
        default=False, description="Whether it runs in a new deployment without being switched on."
    )


class Observe(dg.Model, dg.Resolvable):
    """Records SPSO and lag while nothing runs: no run, no Spark."""

    enabled: bool = Field(
        default=False, description="Whether it runs in a new deployment without being switched on."
    )
    interval_seconds: Count = Field(default=60, description="Seconds between two looks.")
    keep: str = Field(default="90d", description="How long the history of reports is kept, such as `90d`.")

    @field_validator("keep")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        duration(text)
        return text


class Automation(dg.Model, dg.Resolvable):
    """What makes runs, and reports, without a person."""

    sensor: LagSensor = Field(default_factory=LagSensor)
    observe: Observe = Field(default_factory=Observe)
    schedule: Schedule | None = None


class Freshness(dg.Model, dg.Resolvable):
    """How old the report on SPSO and lag may become before its asset is called stale."""

    fail_window: str = Field(description="Stale after so long, such as `2h`, `30m`, `1d`.")
    warn_window: str | None = Field(
        default=None, description="A warning after so long; shorter than `fail_window`."
    )

    def policy(self) -> dg.FreshnessPolicy:
        """Dagster's own."""
        warn = None if self.warn_window is None else duration(self.warn_window)
        return dg.FreshnessPolicy.time_window(fail_window=duration(self.fail_window), warn_window=warn)

    @field_validator("fail_window", "warn_window")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        if text is not None:
            duration(text)
        return text


class Drift(dg.Model, dg.Resolvable):
    """When the dead letters of this week are called other than those of last week. A warning, never an error."""

    factor: Annotated[float, _bounded(1, above=True)] = Field(
        default=2, description="So many times as many, or as few."
    )
    share: Share = Field(
        default=0.2,
        description="A cause has so much more, or less, of all letters; 0.2 is a fifth.",
    )
    min_records: Count = Field(default=100, description="With fewer letters in both weeks, nothing is said.")


class DeadLetters(dg.Model, dg.Resolvable):
    """How the dead letters are checked."""

    suite: str | None = Field(
        default=None,
        description="A Great Expectations suite of your own (JSON, beside the defs.yaml), checked beside ours.",
    )
    data_docs: str | None = Field(
        default=None,
        description="The folder of Data Docs, beside the defs.yaml; below the data folder if not given.",
    )
    max_letters: Count = Field(
        default=200_000,
        description="Letters that one run of the checks reads; the rest is the next one's.",
    )
    drift: Drift = Field(default_factory=Drift)
    blocking: bool = Field(
        default=False,
        description="A failed check of severity ERROR keeps what is downstream of `dead_letters` from being made in "
        "the same run, the reports included.",
    )


class Checks(dg.Model, dg.Resolvable):
    """Bounds whose check fails when they are exceeded; without `max_lag` or `max_age` there is no such check."""

    max_lost: NotNegative = Field(
        default=0,
        description="Records of the group that retention may have removed before they were processed: those that "
        "somebody knows of.",
    )
    max_lag: NotNegative | None = Field(
        default=None, description="Records that may wait, in all share-partitions."
    )
    max_age: str | None = Field(
        default=None, description="How old the oldest unprocessed record may be, such as `2h`."
    )

    @field_validator("max_age")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        if text is not None:
            duration(text)
        return text


class Backfill(dg.Model, dg.Resolvable):
    """Replays by time: the asset `<key_prefix>/replayed`, a partition for each day or hour. Reports on past days: the
    asset `<key_prefix>/history`, a partition for each day in UTC."""

    partitions: Literal["daily", "hourly"] = "daily"
    start: str = Field(description="The first day that can be replayed, such as `2013-01-01`.")
    timezone: str = Field(default="UTC", description="The time zone in which a day begins.")
    one_run: bool = Field(
        default=False,
        description="Replay all that a backfill asks for in one run, which reads the log once; else a run for each.",
    )

    @field_validator("timezone")
    @classmethod
    def _is_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError):
            raise ValueError(f"timezone is {name!r}: expected one such as UTC or Europe/Berlin") from None
        return name

    @field_validator("start")
    @classmethod
    def _is_day(cls, text: str) -> str:
        try:
            date.fromisoformat(text)
        except ValueError:
            raise ValueError(f"start is {text!r}: expected a day, such as 2013-01-01") from None
        return text


class ShareGroup(dg.Model, dg.Resolvable):
    """A share group as Dagster has it. Raises ValueError that names the field when something is wrong."""

    group: str = Field(description="The share group's id, as Kafka has it.")
    topics: Sequence[str] = Field(description="The topics it reads.")
    pipeline: str = Field(
        description="MODULE:NAME of a `sharequeue.spark.pipeline`, or of a handler (DataFrame to DataFrame)."
    )
    configs: Mapping[str, Config] = Field(
        default={},
        description="Group configs that a run sets where the group has none; a value that is set already stays.",
    )
    dead_letters: DeadLetters = Field(default_factory=DeadLetters)
    checks: Checks = Field(default_factory=Checks)
    summaries: Mapping[str, str] = Field(
        default={},
        description="An asset for each of the pipeline's summaries: its name, and MODULE:NAME of what merges it.",
    )
    run: Run = Field(default_factory=Run)
    automation: Automation = Field(default_factory=Automation)
    freshness: Freshness | None = None
    backfill: Backfill | None = None
    key_prefix: Sequence[str] | str | None = Field(
        default=None, description="What the asset keys begin with; the group's name in Dagster if not given."
    )
    owners: Sequence[str] = Field(default=[], description="Of every asset, such as `team:flights`.")
    tags: Mapping[str, str] = Field(default={}, description="Of every asset, beside our own.")

    @field_validator("group")
    @classmethod
    def _is_group(cls, group: str) -> str:
        if not group or (problem := too_long("group id", group)):
            raise ValueError(problem if group else "a share group's id is not empty")
        return group

    @field_validator("topics")
    @classmethod
    def _are_topics(cls, topics: Sequence[str]) -> Sequence[str]:
        if not topics:
            raise ValueError("name at least one topic")
        for topic in topics:
            if problem := topic_name_problem(topic):
                raise ValueError(problem)
        return topics

    @field_validator("pipeline")
    @classmethod
    def _is_pipeline(cls, named: str) -> str:
        _check(named)
        return named

    @field_validator("summaries")
    @classmethod
    def _are_summaries(cls, summaries: Mapping[str, str]) -> Mapping[str, str]:
        for name, merge in summaries.items():
            if not _PLAIN.fullmatch(name):
                raise ValueError(f"a summary is called {name!r}: use letters, digits and underscores")
            if name in RESERVED:
                raise ValueError(
                    f"a summary cannot be called {name!r}: an asset of every share group has that name"
                )
            _check(merge)
        return summaries

    @field_validator("configs")
    @classmethod
    def _are_configs(cls, configs: Mapping[str, Config]) -> Mapping[str, Config]:
        for name, value in configs.items():
            try:
                validate_group_config(name, config_text(value))
            except InvalidConfig as error:
                raise ValueError(error.message) from error
        return configs

    @model_validator(mode="after")
    def _windows_agree(self) -> "ShareGroup":
        fresh = self.freshness
        if fresh and fresh.warn_window and duration(fresh.warn_window) >= duration(fresh.fail_window):
            raise ValueError(
                f"freshness: warn_window {fresh.warn_window} is not shorter than fail_window {fresh.fail_window}"
            )
        return self

    @property
    def name(self) -> str:
        """The group's name in Dagster: of its job, its asset group, and what its other names begin with."""
        return dagster_name(self.group)

    @property
    def prefix(self) -> list[str]:
        """What its asset keys begin with."""
        given = self.key_prefix
        return [self.name] if given is None else [given] if isinstance(given, str) else list(given)

    @property
    def run_tags(self) -> dict[str, str]:
        """The tags of its runs; the deployment's limit of runs goes by them."""
        return {GROUP_TAG: self.group}

    def configure(self, database: Database) -> GroupConfigs:
        """Give the group the configs above where it has none of its own; what somebody has set stays.

        Only who may alter configs can do the first run of a group; a worker finds them there.
        """
        configs = GroupConfigs.load(database, self.group)
        missing: dict[str, Any] = {
            name: config_text(value) for name, value in self.configs.items() if name not in configs.own
        }
        return alter_group_configs(database, self.group, missing) if missing else configs


RESERVED = frozenset(
    {
        "accepted",
        "dead_letters",
        "dead_letter_topic",
        "redriven",
        "replayed",
        "history",
        "spso_and_lag",
        "delivery_counts",
    }
)
"""Names of assets that every share group has."""


def config_text(value: Config) -> str:
    """A config's value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def duration(text: str) -> timedelta:
    """Read `2h`, `30m`, `1d`. Raises ValueError for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no duration: expected a number and s, m, h, d or w, such as 2h")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


def _check(named: str) -> None:
    try:
        Reference.parse(named).check()
    except NoSuchObject as error:
        raise ValueError(str(error)) from error
