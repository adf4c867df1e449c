"""The assets of a share group, and their dependencies.

    kafka/<topic> → accepted → each summary, and kafka/<topic of the results>
                    accepted → dead_letters → kafka/<dead-letter topic> → redriven
                    accepted, dead_letters → spso_and_lag, delivery_counts
    kafka/<topic> → replayed → published, and spso_and_lag → history, if backfills are configured

A topic is one external asset, shared by all groups of a code location that read or write it (`topics_of`). So a
dead-letter topic, or a topic of results, that is another group's source connects both. Redriven records return to
their source topic. As a dependency that would be a cycle, which Dagster refuses: it is a link in the metadata of
both. Every other key begins with the group's prefix, so that two groups never have the same key, even on a shared
topic.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import dagster as dg

from sharequeue.dagster.columns import OF_A_RECORD
from sharequeue.dagster.names import (
    ASSET_TAG,
    GROUP_TAG,
    LAUNCHED,
    OWN_TAGS,
    PIPELINE,
    SUMMARY,
    asset_tag_value,
    dagster_name,
)
from sharequeue.dagster.references import Reference
from sharequeue.dagster.resources import IO_MANAGER
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import Columns, column_schema
from sharequeue.domain.figures import SharePartitionStatus, words_of
from sharequeue.domain.names import listed

ACCEPTED, DEAD_LETTERS, REDRIVEN = "accepted", "dead_letters", "redriven"
SPSO_AND_LAG, DELIVERY_COUNTS = "spso_and_lag", "delivery_counts"
REPLAYED, PUBLISHED, HISTORY = "replayed", "published", "history"
DEAD_LETTER_TOPIC_CONFIG = "errors.deadletterqueue.topic.name"

_SHOWN_GROUPS = 20


@dataclass(frozen=True, slots=True)
class AssetData:
    """An asset, for a translation: its internal name and its group."""

    name: str
    """`accepted`, `dead_letters`, …, or a summary's name."""
    group: ShareGroup


Translate = Callable[[dg.AssetSpec, AssetData], dg.AssetSpec]
"""Changes our spec of an asset into the user's: another key, further tags, another group."""


def unchanged(spec: dg.AssetSpec, data: AssetData) -> dg.AssetSpec:
    """Return our spec: the default translation."""
    return spec


class Lineage:
    """The specs of a share group's assets, translated, with the dependencies between them."""

    def __init__(self, group: ShareGroup, translate: Translate = unchanged) -> None:
        self.group = group
        self._translate = translate
        self._about = _about(group)
        self._translated: dict[str, dg.AssetSpec] = {}
        self._topic_keys: dict[str, dg.AssetKey] = {}

    def __getitem__(self, name: str) -> dg.AssetSpec:
        """Return the spec of an asset by its internal name."""
        spec = self._spec(name)
        # Whatever a translation has added is kept.
        return spec.replace_attributes(deps=[*self._deps(name), *spec.deps])

    def key(self, name: str) -> dg.AssetKey:
        """Return the key of an asset by its internal name."""
        return self._spec(name).key

    def topic_key(self, topic: str) -> dg.AssetKey:
        """Return the key of a topic's asset: each queue of a project asks for those of all."""
        if topic not in self._topic_keys:
            self._topic_keys[topic] = self.group.topic_key(topic)
        return self._topic_keys[topic]

    @property
    def names(self) -> Collection[str]:
        """Return the internal names of its assets."""
        return self._about.keys()

    @property
    def of_a_run(self) -> list[dg.AssetKey]:
        """Return the keys of the assets that a run of the group's job makes."""
        made = (ACCEPTED, *self.group.summaries, DEAD_LETTERS, SPSO_AND_LAG, DELIVERY_COUNTS)
        return [self.key(name) for name in made]

    def _spec(self, name: str) -> dg.AssetSpec:
        if name not in self._translated:
            base = _base(self.group, name, *self._about[name])
            spec = self._translate(base, AssetData(name, self.group))
            for tag in (GROUP_TAG, ASSET_TAG):
                if spec.tags.get(tag, base.tags[tag]) != base.tags[tag]:
                    raise ValueError(
                        f"the asset {name!r} of share group {self.group.group!r} gets the tag {tag} with "
                        f"{spec.tags[tag]!r}: tags that begin with {OWN_TAGS} are our own; use another name"
                    )
            self._translated[name] = spec
        return self._translated[name]

    def _deps(self, name: str) -> list[dg.AssetKey]:
        if name in (ACCEPTED, REPLAYED):
            return [self.topic_key(topic) for topic in self.group.topics]
        letters = dead_letter_topic(self.group)
        if name == REDRIVEN and letters:
            return [self.topic_key(letters)]
        return [self.key(dep) for dep in _DEPS.get(name, (ACCEPTED,))]


_DEPS = {
    REDRIVEN: (DEAD_LETTERS,),
    SPSO_AND_LAG: (ACCEPTED, DEAD_LETTERS),
    DELIVERY_COUNTS: (ACCEPTED, DEAD_LETTERS),
    PUBLISHED: (REPLAYED,),
    HISTORY: (SPSO_AND_LAG,),
}


def dead_letter_topic(group: ShareGroup) -> str:
    """Return the dead-letter topic in a group's configs; an empty text if they have none."""
    return str(group.configs.get(DEAD_LETTER_TOPIC_CONFIG) or "")


def written_topics(group: ShareGroup) -> dict[str, str]:
    """Return the topics that a group writes, by the asset whose records they get."""
    found = {ACCEPTED: group.results_topic, DEAD_LETTERS: dead_letter_topic(group)}
    return {name: topic for name, topic in found.items() if topic}


def topics_of(lineages: Iterable[Lineage], only: Collection[dg.AssetKey] | None = None) -> list[dg.AssetSpec]:
    """Return an external asset for each topic that these groups read or write, or for some of the topics."""
    ordered = sorted(lineages, key=lambda lineage: lineage.group.group)
    readers, writers, looped = _users(ordered)
    names = _names(ordered)
    wanted = names if only is None else only
    return [_topic(key, *names[key], readers[key], writers[key], looped[key]) for key in sorted(wanted)]


def _names(lineages: Sequence[Lineage]) -> dict[dg.AssetKey, tuple[Lineage, str]]:
    """Return each topic's name, and the first group that uses it: its translation decides."""
    found: dict[dg.AssetKey, tuple[Lineage, str]] = {}
    for lineage in lineages:
        for topic in (*lineage.group.topics, *written_topics(lineage.group).values()):
            found.setdefault(lineage.topic_key(topic), (lineage, topic))
    return found


_Writer = tuple[Lineage, str]
"""A group, and the asset of it whose records a topic gets."""
_Writers = Mapping[dg.AssetKey, list[_Writer]]


def _users(lineages: Sequence[Lineage]) -> tuple[Mapping[dg.AssetKey, list[Lineage]], _Writers, _Writers]:
    """Return the groups that read each topic, and those that write their results or dead letters to it. Those of the
    latter that read, maybe over other groups, what is written there are separate: the dependency would close a
    circle.
    """
    readers = defaultdict[dg.AssetKey, list[Lineage]](list)
    writers, looped = (defaultdict[dg.AssetKey, list[_Writer]](list) for _ in range(2))
    below: dict[dg.AssetKey, set[dg.AssetKey]] = defaultdict(set)
    for lineage in lineages:
        topics = {lineage.topic_key(topic) for topic in lineage.group.topics}
        for topic in topics:
            readers[topic].append(lineage)
        for name, written in written_topics(lineage.group).items():
            target = lineage.topic_key(written)
            if topics & _reached(target, below):
                looped[target].append((lineage, name))
                continue
            writers[target].append((lineage, name))
            for topic in topics:
                below[topic].add(target)
    return readers, writers, looped


def _reached(topic: dg.AssetKey, below: Mapping[dg.AssetKey, set[dg.AssetKey]]) -> set[dg.AssetKey]:
    """Return a topic, and the topics that records of it may reach as results or dead letters."""
    reached, left = {topic}, [topic]
    while left:
        new = below.get(left.pop(), set()) - reached
        reached |= new
        left += new
    return reached


def _topic(
    key: dg.AssetKey,
    first: Lineage,
    topic: str,
    readers: Sequence[Lineage],
    writers: Sequence[_Writer],
    looped: Sequence[_Writer],
) -> dg.AssetSpec:
    results_of, letters_of = (
        sorted(lineage.group.group for lineage, name in (*writers, *looped) if name == written)
        for written in (ACCEPTED, DEAD_LETTERS)
    )
    read_by = [lineage.group.group for lineage in readers]
    uses = []
    if results_of:
        uses.append(f"gets the results of {_groups(results_of)}")
    if letters_of:
        uses.append(f"the dead-letter topic of {_groups(letters_of)}")
    if read_by:
        uses.append(f"read by {_groups(read_by)}")
    spec = dg.AssetSpec(
        key=[*first.group.topic_prefixes, topic],
        description=f"The Kafka topic `{topic}`: {', '.join(uses)}. Runs and the observe sensors record its "
        "partitions and offsets.",
        group_name=dagster_name("_".join(first.group.topic_prefixes)),
        kinds={"kafka"},
        deps=[lineage.key(name) for lineage, name in writers],
        metadata={
            "topic": topic,
            "dagster/table_name": topic,
            "dagster/storage_kind": "kafka",
            **column_schema(OF_A_RECORD),
            **({"read_by": ", ".join(read_by)} if read_by else {}),
            **({"results_of": ", ".join(results_of)} if results_of else {}),
            **({"dead_letters_of": ", ".join(letters_of)} if letters_of else {}),
            # Links in place of dependencies that would close a circle.
            **{f"also_written_by_{each.group.name}": _link(each, name) for each, name in looped},
            **{f"redriven_by_{each.group.name}": _link(each, REDRIVEN) for each in readers},
        },
    )
    return first.group.get_topic_spec(spec, topic).replace_attributes(key=key)


def _groups(names: Sequence[str]) -> str:
    return (
        f"share group{'s' if len(names) > 1 else ''} {listed([f'`{name}`' for name in names], _SHOWN_GROUPS)}"
    )


def _link(lineage: Lineage, name: str) -> dg.MetadataValue[Any]:
    return dg.MetadataValue.asset(lineage.key(name))


def _about(group: ShareGroup) -> dict[str, tuple[str, set[str]]]:
    """Return the description and the kinds of each asset."""
    topics = ", ".join(group.topics)
    return {
        ACCEPTED: (
            f"Records of {topics} that share group `{group.group}` has accepted. Each counts once, from the commit "
            "of its acknowledgement on.",
            {"kafka", "spark"},
        ),
        **{
            name: (
                f"The summary `{name}` of the records that `{group.group}` has accepted, merged from all leases.",
                {"spark", "parquet"},
            )
            for name in group.summaries
        },
        DEAD_LETTERS: (
            f"Records that `{group.group}` rejected, or whose deliveries were exhausted, written to the dead-letter "
            "topic, each exactly once.",
            {"kafka"},
        ),
        REDRIVEN: (
            f"Dead letters of `{group.group}` sent back to {topics}, each once. The job `{group.name}_redrive` sends "
            "them; a dry run unless `execute` is set.",
            {"kafka"},
        ),
        SPSO_AND_LAG: (
            "Lag, records in flight and share-partition start offset (SPSO: all records below it are done) of each "
            f"share-partition of `{group.group}`; stored in Postgres.",
            {"postgres"},
        ),
        DELIVERY_COUNTS: (
            f"Records of `{group.group}` by outcome and number of deliveries, since the group began.",
            {"postgres"},
        ),
        **(
            {
                REPLAYED: (
                    f"Records of {topics} by their timestamps, processed again by the handler of "
                    f"`{group.group}`, into separate folders. The live group is not changed.",
                    {"kafka", "spark", "parquet"},
                ),
                PUBLISHED: (
                    f"Replayed records of `{group.group}` in its live output, in place of the rows of the same "
                    f"records. The job `{group.name}_publish` publishes them; a dry run unless `execute` is set.",
                    {"spark"},
                ),
                HISTORY: (
                    f"The figures of each past day of `{group.group}`. The job `{group.name}_count_days` counts them "
                    "again from the journal.",
                    {"postgres"},
                ),
            }
            if group.backfill
            else {}
        ),
    }


def _base(group: ShareGroup, name: str, description: str, kinds: set[str]) -> dg.AssetSpec:
    stale = group.stale_after
    fresh = stale.policy() if stale and name in (ACCEPTED, SPSO_AND_LAG) else None
    spec = dg.AssetSpec(
        key=dg.AssetKey([*group.prefix, name]),
        description=description,
        group_name=group.name,
        kinds=kinds,
        owners=list(group.owners),
        tags={**group.tags, GROUP_TAG: asset_tag_value(group.group), ASSET_TAG: name},
        freshness_policy=fresh,
        metadata={"share_group": group.group, **_stored(group, name)},
    )
    code = {ACCEPTED: group.pipeline, REPLAYED: group.pipeline, **group.summaries}.get(name)
    if code is not None:
        spec = spec.merge_attributes(metadata=_code(code))
    if name != ACCEPTED and name not in group.summaries:
        return spec
    of_summary = {} if name == ACCEPTED else {SUMMARY: name}
    launch = group.run.launch
    launched = {} if launch is None else {LAUNCHED: launch.client}
    return spec.merge_attributes(
        metadata={PIPELINE: group.pipeline, **of_summary, **launched}
    ).with_io_manager_key(IO_MANAGER)


def _code(named: str) -> Mapping[str, Any]:
    """Return where a handler or a merge function is, for the link to its source; a component adds its yaml."""
    place = Reference.parse(named).place()
    if place is None:
        return {}
    file, line = place
    code = dg.LocalFileCodeReference(file_path=str(file), line_number=line, label=named)
    return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[code])}


def _stored(group: ShareGroup, name: str) -> Mapping[str, Any]:
    """Return where an asset is, and its columns, as far as that is known without a server."""
    letters = dead_letter_topic(group)
    if name == DEAD_LETTERS and letters:
        return {
            "dagster/table_name": letters,
            "dagster/storage_kind": "kafka",
            "dagster/column_schema": dg.TableSchema(
                columns=[dg.TableColumn(*column) for column in _LETTER_COLUMNS]
            ),
        }
    if name == REDRIVEN:
        return {f"sends_to_{topic}": dg.MetadataValue.asset(group.topic_key(topic)) for topic in group.topics}
    if name not in _VIEWS:
        return {}
    view, columns = _VIEWS[name]
    return {
        "dagster/table_name": f"sharequeue.{view}",
        "dagster/storage_kind": "postgres",
        "dagster/column_schema": dg.TableSchema(
            columns=[dg.TableColumn(column, kind, _words(view, column)) for column, kind in columns.items()]
        ),
    }


def _words(view: str, column: str) -> str | None:
    words = {**_DESCRIBED, **_DESCRIBED_IN.get(view, {})}.get(column)
    return words or words_of(SharePartitionStatus, column)


_KINDS = {"int": "int", "str": "string", "datetime": "timestamp"}
_AT: Columns = {"group_id": "string", "topic": "string", "partition": "int"}
_BY_DAY = ("leases", "entered", "accepted_first", "lost_records", "highest_delivery_count", "spso", "speo")
_VIEWS: Mapping[str, tuple[str, Columns]] = {
    SPSO_AND_LAG: (
        "share_partition_status",
        {each.name: _KINDS[str(each.type).partition(" ")[0]] for each in fields(SharePartitionStatus)},
    ),
    DELIVERY_COUNTS: (
        "delivery_count_totals",
        {**_AT, "outcome": "string", "delivery_count": "int", "records": "int"},
    ),
    HISTORY: ("daily_rollups", {"day": "date", **_AT, **dict.fromkeys(_BY_DAY, "int")}),
}
"""The views with the same figures: the names of their columns, and Dagster's names of the types."""
_DESCRIBED = {
    "group_id": "The share group.",
    "topic": "The topic.",
    "partition": "The partition of the topic.",
    "topic_id": "Kafka's id of the topic.",
    "last_stable_offset": "The end of the committed records, as last seen.",
    "oldest_state": "The state of the record at `oldest_offset`.",
    "blocked_reason": "Why nothing can be leased, in a sentence.",
    "paused_reason": "Why it is paused, as given by a person or by the circuit breaker.",
    "fault": "Why lag does not follow the formula, or that the log was truncated.",
    "truncated_to": "Where the log once ended below delivered records, until the offsets are reset.",
    "held_reason": "Why dead letters are not written, if an operator must act.",
    "outcome": "The outcome: accepted, rejected, exhausted or gap.",
    "delivery_count": "How often they were delivered.",
    "records": "The number of records.",
}
"""The descriptions of columns that are not figures."""
_DESCRIBED_IN: Mapping[str, Mapping[str, str]] = {
    "daily_rollups": {
        "day": "The day, in UTC.",
        "leases": "Leases of that day.",
        "entered": "New records of that day.",
        "accepted_first": "Records accepted at their first delivery.",
        "highest_delivery_count": "The most deliveries of a record in flight on that day.",
    }
}
"""The descriptions of columns that mean something else, or exist only, in one view."""
_LETTER_COLUMNS = (
    ("key", "bytes", "The record's key, if copies are enabled."),
    ("value", "bytes", "The record's value, if copies are enabled."),
    ("headers", "map<string, bytes>", "Where the record is from, why it is here, and its own headers."),
)
