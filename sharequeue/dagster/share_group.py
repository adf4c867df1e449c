"""The attributes of a share group's `defs.yaml`.

There is one model for YAML and for Python: `ShareGroup(group=…, topics=[…], pipeline="…")`. It checks everything that
can be checked without a server or Spark when it is created, and reports the field and the expected value. Objects
named as text (`pipeline`, `summaries`) are not imported: a process that only loads definitions does not need Spark.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import AfterValidator, Field, field_validator, model_validator

from sharequeue.dagster.launching import Launch
from sharequeue.dagster.names import GROUP_TAG, QUEUE_TAG, REPLAY_TAG, dagster_name, is_dagster_name
from sharequeue.dagster.references import NoSuchObject, Reference
from sharequeue.database import Database
from sharequeue.domain.errors import InvalidConfig
from sharequeue.domain.names import too_long, topic_name_problem
from sharequeue.groups.configs import GroupConfigs, alter_group_configs, validate_group_config

Config = str | int | float | bool


def _bounded(least: float, most: float | None = None, *, above: bool = False) -> AfterValidator:
    """Return a validator of a number's bounds, in place of pydantic's own.

    Dagster reads a yaml into a copy of the model in which every field may also be a text, for which pydantic's bounds
    raise a TypeError without the field's name.
    """
    expected = f"more than {least:g}" if above else f"at least {least:g}"
    expected += "" if most is None else f" and at most {most:g}"

    def check(value: Any) -> Any:
        if isinstance(value, int | float) and not (
            (value > least if above else value >= least)
            and value < math.inf
            and (most is None or value <= most)
        ):
            raise ValueError(f"expected {expected}, but it is {value:g}")
        return value

    return AfterValidator(check)


Count = Annotated[int, _bounded(1)]
NotNegative = Annotated[int, _bounded(0)]
Seconds = Annotated[float, _bounded(0, above=True)]
Share = Annotated[float, _bounded(0, 1, above=True)]

TOPIC_PREFIX = "kafka"
"""The prefix of the keys of topics, unless `topic_prefix` has another."""
STALE_AFTER = "1d"
"""The age at which assets of an observed queue are stale, unless `freshness` has another."""

HELD_LONG = "1d"
"""How long a key may be open in a group that its yaml orders by key, unless `checks` has another time."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_PLAIN = re.compile(r"[A-Za-z0-9_]+")


class RunLimits(dg.Model, dg.Resolvable):
    """The limits of one run; the remaining work is left to the next one."""

    max_seconds: Seconds = Field(
        default=600, description="Seconds after which no new round begins; the current one is finished."
    )
    max_records: Count = Field(default=10_000_000, description="Maximum records leased in one round.")
    max_bytes: NotNegative | None = Field(
        default=None,
        description="Maximum bytes leased in one round, 0 for no limit; default: the pipeline's or its group's.",
    )
    deliveries_per_run: Count | None = Field(
        default=None,
        description="How often one run leases a record that it has released; default: the pipeline's value.",
    )
    replaces: str | None = Field(
        default=None,
        description="The pipeline that worked on the group before, if this one replaces it.",
    )
    pool: str | None = Field(
        default="spark",
        description="The concurrency pool of steps that use Spark; the deployment sets its limit. `null`: no pool.",
    )
    launch: Launch | None = Field(
        default=None,
        description="A Pipes client that starts the driver elsewhere; default: in the run's process.",
    )


class LagSensor(dg.Model, dg.Resolvable):
    """Requests a run while the group has records that nobody holds."""

    enabled: bool = Field(default=False, description="Whether it is switched on in a new deployment.")
    min_lag: Count = Field(default=1, description="Waiting records from which on a run is requested.")
    max_age_seconds: Seconds | None = Field(
        default=None,
        description="A run is also requested when anything has waited for this long since it was first seen.",
    )
    interval_seconds: Count = Field(default=30, description="Seconds between two ticks.")
    pause_after_failure_seconds: Annotated[float, _bounded(0)] = Field(
        default=300,
        description="Seconds without a request after a run that failed, was cancelled or changed nothing.",
    )


class Schedule(dg.Model, dg.Resolvable):
    """Runs at set times, whatever the lag."""

    cron: str = Field(description="The times, such as `0 3 * * *`.")
    timezone: str = Field(default="UTC", description="The time zone of `cron`, such as `Europe/Berlin`.")
    enabled: bool = Field(default=False, description="Whether it is switched on in a new deployment.")

    @field_validator("timezone")
    @classmethod
    def _is_zone(cls, name: str) -> str:
        return _zone(name)

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, text: str) -> str:
        try:
            # Dagster also reads the yaml before it has filled in templates.
            if "{{" not in text:
                dg.ScheduleDefinition(job_name="any", cron_schedule=text)
        except dg.DagsterInvalidDefinitionError:
            raise ValueError(
                f"cron is {text!r}: expected minute, hour, day, month and weekday, each in its range, "
                "such as `0 3 * * *`"
            ) from None
        return text


class Observe(dg.Model, dg.Resolvable):
    """Records the share-partition start offset (SPSO) and lag while nothing runs: no run, no Spark."""

    enabled: bool = Field(default=False, description="Whether it is switched on in a new deployment.")
    interval_seconds: Count = Field(default=60, description="Seconds between two ticks.")
    keep: str = Field(default="90d", description="The retention of the history of reports, such as `90d`.")

    @field_validator("keep")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        duration(text)
        return text


class Automation(dg.Model, dg.Resolvable):
    """Everything that starts runs, and writes reports, automatically."""

    sensor: LagSensor = Field(default_factory=LagSensor)
    observe: Observe = Field(default_factory=Observe)
    schedule: Schedule | None = None


class Freshness(dg.Model, dg.Resolvable):
    """The age at which `accepted`, and the report on SPSO and lag, are stale.

    `accepted` is as old as its last successful run, or as the last observation of an empty queue.
    """

    fail_window: str = Field(description="The age at which it is stale, such as `2h`, `30m`, `1d`.")
    warn_window: str | None = Field(
        default=None, description="The age of a warning; shorter than `fail_window`."
    )

    def policy(self) -> dg.FreshnessPolicy:
        """Dagster's freshness policy."""
        warn = None if self.warn_window is None else duration(self.warn_window)
        return dg.FreshnessPolicy.time_window(fail_window=duration(self.fail_window), warn_window=warn)

    @field_validator("fail_window", "warn_window")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        if text is not None:
            duration(text)
        return text


class Drift(dg.Model, dg.Resolvable):
    """When this week's dead letters count as different from last week's. A warning, never an error."""

    factor: Annotated[float, _bounded(1, above=True)] = Field(
        default=2, description="The factor by which their number must change."
    )
    share: Share = Field(
        default=0.2,
        description="The change of a cause's share of all letters; 0.2 is a fifth.",
    )
    min_records: Count = Field(default=100, description="With fewer letters in both weeks, the check passes.")


class DeadLetterChecks(dg.Model, dg.Resolvable):
    """How dead letters are checked."""

    suite: str | None = Field(
        default=None,
        description="A Great Expectations suite of your own (JSON, next to the defs.yaml), in addition to ours.",
    )
    max_letters: Count = Field(
        default=200_000,
        description="Letters that one run of the checks reads; the next run continues there.",
    )
    drift: Drift = Field(default_factory=Drift)
    blocking: bool = Field(
        default=False,
        description="A failed check of severity ERROR stops the assets downstream of `dead_letters` in "
        "the same run, the reports included.",
    )


class Checks(dg.Model, dg.Resolvable):
    """Limits whose check fails when they are exceeded; without `max_lag`, `max_age` or `max_held` that check does not
    exist."""

    max_lost: NotNegative = Field(
        default=0,
        description="Records of the group that retention may have removed before they were processed: set it to "
        "the known ones.",
    )
    max_lag: NotNegative | None = Field(
        default=None, description="Records that may wait, in all share-partitions together."
    )
    max_age: str | None = Field(
        default=None, description="The allowed age of the oldest unfinished record, such as `2h`."
    )

    max_held: str | None = Field(
        default=None,
        description="How long a key may be open, such as `6h`; default: `1d` if `configs` order the group by key.",
    )

    @field_validator("max_age", "max_held")
    @classmethod
    def _is_duration(cls, text: str | None) -> str | None:
        if text is not None:
            duration(text)
        return text


class Backfill(dg.Model, dg.Resolvable):
    """Replays by time: the asset `<key_prefix>/replayed`, with a partition for each week, day or hour, and
    `<key_prefix>/published`. Reports on past days: the asset `<key_prefix>/history`, with a partition for each day in
    UTC that has figures."""

    partitions: Literal["weekly", "daily", "hourly"] = Field(
        default="daily", description="`weekly`, `daily` or `hourly`; a week begins on the weekday of `start`."
    )
    start: str = Field(description="The first day that can be replayed, such as `2013-01-01`.")
    timezone: str = Field(default="UTC", description="The time zone in which a day begins.")
    one_run: bool = Field(
        default=True,
        description="Replay a range of partitions in one run, which reads the log once; `false`: one run for each, "
        "of which each reads the log.",
    )

    @field_validator("timezone")
    @classmethod
    def _is_zone(cls, name: str) -> str:
        return _zone(name)

    @field_validator("start")
    @classmethod
    def _is_day(cls, text: str) -> str:
        if day_of(text) is None:
            raise ValueError(f"start is {text!r}: expected a day such as 2013-01-01")
        return text


class TopicDestination(dg.Model, dg.Resolvable):
    """A topic that gets every accepted record exactly once; its fields are the arguments of the sink `KafkaTopic`."""

    topic: str = Field(description="The topic, which must exist.")
    key: str | None = Field(default=None, description="The column of the key; default: no key.")
    value: str = Field(
        default="to_json", description="The column of the value; default: one JSON object of all columns."
    )
    headers: str | None = Field(default=None, description="The column of the headers.")
    partition: str | None = Field(
        default=None, description="The column of the partition; default: the key decides."
    )
    timestamp: str | None = Field(
        default=None, description="The column of the timestamp; default: the time at which a record is sent."
    )
    key_subject: str | None = Field(
        default=None,
        description="The subject in the schema registry with whose latest schema, Avro or JSON Schema, the key is "
        "written.",
    )
    value_subject: str | None = Field(
        default=None,
        description="The subject in the schema registry with whose latest schema, Avro or JSON Schema, the value is "
        "written.",
    )
    source_headers: bool = Field(default=True, description="Whether headers name the source of each record.")
    loop: bool = Field(default=False, description="Whether it may be one of `topics`.")

    @field_validator("topic")
    @classmethod
    def _is_topic(cls, topic: str) -> str:
        # Dagster also reads the yaml before it has filled in templates.
        if "{{" not in topic and (problem := topic_name_problem(topic)):
            raise ValueError(problem)
        return topic


class Destination(dg.Model, dg.Resolvable):
    """Where accepted records go, for a pipeline that does not say it itself."""

    kafka_topic: TopicDestination = Field(description="A topic, with the arguments of the sink `KafkaTopic`.")


class ShareGroup(dg.Model, dg.Resolvable):
    """A share group in Dagster. Raises ValueError with the field if a value is wrong."""

    group: str = Field(description="The share group's id in Kafka.")
    topics: Sequence[str] = Field(description="The topics that it reads.")
    name: str = Field(
        default="",
        description="The name in Dagster: of its job and its asset group, and the beginning of its other names; "
        "default: the group's id, with `_` for characters that Dagster does not allow.",
    )
    pipeline: str = Field(
        description="MODULE:NAME of a `sharequeue.spark.pipeline`, or of a handler (DataFrame to DataFrame)."
    )
    configs: Mapping[str, Config] = Field(
        default={},
        description="Group configs that a run sets if the group has no value for them; existing values are kept.",
    )
    destination: Destination | None = Field(
        default=None,
        description="Where accepted records go; default: what the pipeline says, or else files. The topic becomes an "
        "asset that depends on `accepted`.",
    )
    dead_letters: DeadLetterChecks = Field(default_factory=DeadLetterChecks)
    checks: Checks = Field(default_factory=Checks)
    summaries: Mapping[str, str] = Field(
        default={},
        description="An asset for each of the pipeline's summaries: its name, and MODULE:NAME of its merge function.",
    )
    run: RunLimits = Field(default_factory=RunLimits)
    automation: Automation = Field(default_factory=Automation)
    freshness: Freshness | None = Field(
        default=None,
        description="When `accepted` and the report are stale; default: after a day if `automation.observe` is on.",
    )
    backfill: Backfill | None = None
    key_prefix: Sequence[str] | str | None = Field(
        default=None, description="The prefix of the asset keys; default: the group's name in Dagster."
    )
    topic_prefix: Sequence[str] | str = Field(
        default=TOPIC_PREFIX,
        description="The prefix of the asset keys of topics. Topics of a second Kafka cluster need another one.",
    )
    owners: Sequence[str] = Field(
        default=[], description="The owners of every asset, such as `team:flights`."
    )
    tags: Mapping[str, str] = Field(default={}, description="Tags of every asset, in addition to our own.")

    @field_validator("group")
    @classmethod
    def _is_group(cls, group: str) -> str:
        if not group or (problem := too_long("group id", group)):
            raise ValueError(problem if group else "group.id must not be empty")
        return group

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if name and "{{" not in name and not is_dagster_name(name):
            raise ValueError(
                f"name is {name!r}: use letters, digits and underscores, and no word that Dagster reserves"
            )
        return name

    @field_validator("key_prefix", "topic_prefix")
    @classmethod
    def _is_prefix(cls, given: Sequence[str] | str | None) -> Sequence[str] | str | None:
        if given is not None and not (given and all(given)):
            raise ValueError(f"{given!r} is not the prefix of a key: expected one name or more")
        return given

    @field_validator("topics")
    @classmethod
    def _are_topics(cls, topics: Sequence[str]) -> Sequence[str]:
        if not topics:
            raise ValueError("topics must have at least one topic")
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
                raise ValueError(f"a summary has the name {name!r}: use letters, digits and underscores")
            if name in RESERVED:
                raise ValueError(
                    f"a summary must not have the name {name!r}: every share group has an asset of that name"
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
                f"freshness: warn_window {fresh.warn_window} must be shorter than fail_window {fresh.fail_window}"
            )
        return self

    @model_validator(mode="after")
    def _writes_elsewhere(self) -> "ShareGroup":
        # Dagster also reads the yaml before it has filled in templates.
        topic, given = self.results_topic, self.destination
        if topic and topic == self.configs.get("errors.deadletterqueue.topic.name"):
            raise ValueError(f"destination: {topic} is the dead-letter topic of the group: use another one")
        if topic in self.topics and given is not None and not given.kafka_topic.loop:
            raise ValueError(
                f"destination: the group reads {topic}, and would get its own results as records: use another "
                "topic, or set `loop: true` if that is meant"
            )
        return self

    @model_validator(mode="after")
    def _has_name(self) -> "ShareGroup":
        # Dagster also reads the yaml before it has filled in templates.
        if not self.name and "{{" not in self.group:
            self.name = dagster_name(self.group)
        return self

    @model_validator(mode="after")
    def _has_limit_of_open_keys(self) -> "ShareGroup":
        # Dagster also reads the yaml before it has filled in templates.
        checks = self.checks
        if (
            self.configs.get("sharequeue.order") == "key"
            and isinstance(checks, Checks)
            and checks.max_held is None
        ):
            self.checks = checks.model_copy(update={"max_held": HELD_LONG})
        return self

    @property
    def stale_after(self) -> Freshness | None:
        """The freshness of its assets: as given, or a day if somebody observes when the queue is empty."""
        if self.freshness is None and self.automation.observe.enabled:
            return Freshness(fail_window=STALE_AFTER)
        return self.freshness

    @property
    def results_topic(self) -> str:
        """The topic that gets its accepted records; an empty text if `destination` names none."""
        given = self.destination
        return given.kafka_topic.topic if isinstance(given, Destination) else ""

    @property
    def reset_policy(self) -> str | None:
        """The `share.auto.offset.reset` that its first run sets if the group has no value; None if it sets none."""
        given = self.configs.get("share.auto.offset.reset")
        return None if given is None else config_text(given)

    @property
    def prefix(self) -> list[str]:
        """The prefix of its asset keys."""
        return [self.name] if self.key_prefix is None else _parts(self.key_prefix)

    @property
    def queue(self) -> str:
        """What its runs and partitions are found by in Dagster, where two clusters may have a group of its id."""
        return "/".join(self.prefix)

    @property
    def output(self) -> str:
        """The name of its output if its pipeline has none: of the group's id, so that `name` moves no output."""
        return dagster_name(self.group)

    @property
    def run_tags(self) -> dict[str, str]:
        """The tags of its runs, also for the deployment's concurrency limits."""
        return {GROUP_TAG: self.group, QUEUE_TAG: self.queue}

    @property
    def replay_tags(self) -> dict[str, str]:
        """The tags of its replays and their publications, which are not limited with its runs."""
        return {REPLAY_TAG: self.group, QUEUE_TAG: self.queue}

    def topic_key(self, topic: str) -> dg.AssetKey:
        """Return the key of a topic's asset."""
        return dg.AssetKey([*_parts(self.topic_prefix), topic])

    def configure(self, database: Database) -> GroupConfigs:
        """Set the group's configs above if the group has no value for them; existing values are kept.

        The first run of a group needs the permission to alter configs; later runs find the values set.
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
        "redriven",
        "replayed",
        "published",
        "history",
        "spso_and_lag",
        "delivery_counts",
    }
)
"""Names of assets that every share group has."""


def _parts(prefix: Sequence[str] | str) -> list[str]:
    return [prefix] if isinstance(prefix, str) else list(prefix)


def config_text(value: Config) -> str:
    """Return a config's value in Kafka's text form."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def duration(text: str) -> timedelta:
    """Read `2h`, `30m`, `1d`. Raises ValueError for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a duration: expected a number and s, m, h, d or w, such as 2h")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


def day_of(text: str) -> date | None:
    """Return the day that a text such as `2013-01-01` is; None for any other form, such as 20130101 or 2013-W01-1."""
    with suppress(ValueError):
        day = date.fromisoformat(text)
        return day if day.isoformat() == text else None
    return None


def _zone(name: str) -> str:
    try:
        if "{{" not in name:
            ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"timezone is {name!r}: expected a time zone such as UTC or Europe/Berlin") from None
    return name


def _check(named: str) -> None:
    try:
        Reference.parse(named).check()
    except NoSuchObject as error:
        raise ValueError(str(error)) from error
