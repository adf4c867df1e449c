"""The attributes of a share group's `defs.yaml`.

There is one model for YAML and for Python: `ShareGroup(group=…, topics=[…], pipeline="…")`. It checks everything that
can be checked without a server or Spark when it is created, and reports the field and the expected value. Objects
named as text (`pipeline`, `summaries`) are not imported: a process that only loads definitions does not need Spark.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field, field_validator, model_validator

from sharequeue.dagster.automation import Automation, Freshness
from sharequeue.dagster.columns import ColumnFields
from sharequeue.dagster.execution import JobFields, OpFields, RunLimits
from sharequeue.dagster.names import (
    GROUP_TAG,
    QUEUE_TAG,
    REPLAY_TAG,
    dagster_name,
    is_dagster_name,
    is_part_of_key,
    require_no_own_tags,
)
from sharequeue.dagster.references import NoSuchObject, Reference
from sharequeue.dagster.yaml_values import (
    Count,
    Duration,
    NotNegative,
    Share,
    Texts,
    bounded,
    day_of,
    duration,
    zone_of,
)
from sharequeue.database import Database
from sharequeue.domain.errors import InvalidConfig
from sharequeue.domain.names import too_long, topic_name_problem
from sharequeue.groups.configs import GroupConfigs, alter_group_configs, validate_group_config

Config = str | int | float | bool

TOPIC_PREFIX = "kafka"
"""The prefix of the keys of topics, unless `topic_prefix` has another."""
STALE_AFTER = "1d"
"""The age at which assets of an observed queue are stale, unless `freshness` has another."""

HELD_LONG = "1d"
"""How long a key may be open in a group that its yaml orders by key, unless `checks` has another time."""

_PLAIN = re.compile(r"[A-Za-z0-9_]+")


class Drift(dg.Model, dg.Resolvable):
    """When this week's dead letters count as different from last week's. A warning, never an error."""

    factor: Annotated[float, bounded(1, above=True)] = Field(
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
    max_age: Duration | None = Field(
        default=None, description="The allowed age of the oldest unfinished record, such as `2h`."
    )

    max_held: Duration | None = Field(
        default=None,
        description="How long a key may be open, such as `6h`; default: `1d` if `configs` order the group by key.",
    )


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
        return zone_of(name)

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
    columns: Sequence[ColumnFields] = Field(
        default=[], description="The columns of the accepted rows: descriptions, sources and checks."
    )
    summaries: Mapping[str, str] = Field(
        default={},
        description="An asset for each of the pipeline's summaries: its name, and MODULE:NAME of its merge function.",
    )
    run: RunLimits = Field(default_factory=RunLimits)
    op: OpFields = Field(default_factory=OpFields)
    job: JobFields = Field(default_factory=JobFields)
    automation: Automation = Field(default_factory=Automation)
    freshness: Freshness | None = Field(
        default=None,
        description="When `accepted` and the report are stale; default: after a day if `automation.observe` is on.",
    )
    backfill: Backfill | None = None
    key_prefix: Texts | None = Field(
        default=None,
        description="The prefix of the asset keys: a name, or a list of names; default: the group's name in Dagster.",
    )
    topic_prefix: Texts = Field(
        default=TOPIC_PREFIX,
        description="The prefix of the asset keys of topics: a name, or a list of names. Topics of a second Kafka "
        "cluster need another one.",
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
        if given is not None and not (given and all(map(is_part_of_key, _parts(given)))):
            raise ValueError(
                f"{given!r} is not the prefix of a key: expected a name of letters, digits, `_`, `-` and `.`, or a "
                "list of such names, such as [shop, orders]"
            )
        return given

    @field_validator("tags")
    @classmethod
    def _are_tags(cls, tags: Mapping[str, str]) -> Mapping[str, str]:
        require_no_own_tags(tags)
        return tags

    @field_validator("topics")
    @classmethod
    def _are_topics(cls, topics: Sequence[str]) -> Sequence[str]:
        if not topics:
            raise ValueError("topics must have at least one topic")
        times = Counter(topics)
        for topic in topics:
            if problem := topic_name_problem(topic):
                raise ValueError(problem)
            if times[topic] > 1:
                raise ValueError(f"topics has {topic!r} more than once: name each topic once")
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

    @field_validator("columns")
    @classmethod
    def _are_columns(cls, columns: Sequence[ColumnFields]) -> Sequence[ColumnFields]:
        # A handler's result cannot have two columns that differ only in case, nor Dagster two checks of one name.
        seen: dict[str, str] = {}
        for each in columns:
            name = dagster_name(each.name).lower()
            if name in seen:
                raise ValueError(
                    f"columns: {seen[name]} and {each.name} are one column: leave one of them out"
                )
            seen[name] = each.name
        return columns

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
    def _ends_before_it_is_ended(self) -> "ShareGroup":
        longest, limit = self.job.max_runtime, self.run.max_seconds
        if longest is not None and duration(longest).total_seconds() <= limit:
            raise ValueError(
                f"job.max_runtime {longest} must be longer than run.max_seconds, {limit:g}: run monitoring would end "
                "runs that work. Set run.max_seconds far below it"
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
    def topic_prefixes(self) -> list[str]:
        """The prefix of the default keys of its topics."""
        return _parts(self.topic_prefix)

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

    def get_topic_spec(self, spec: dg.AssetSpec, topic: str) -> dg.AssetSpec:
        """Return the final spec of a topic's asset; `spec` is the default one. The key must depend on the default key
        and the topic alone: it is asked for without the rest of the spec, too.
        """
        return spec

    def topic_key(self, topic: str) -> dg.AssetKey:
        """Return the key of a topic's asset."""
        return self.get_topic_spec(dg.AssetSpec([*self.topic_prefixes, topic]), topic).key

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


def _check(named: str) -> None:
    try:
        Reference.parse(named).check()
    except NoSuchObject as error:
        raise ValueError(str(error)) from error
