"""The assets of a share group, and their dependencies.

    kafka/<topic> → accepted → each summary
                    accepted → dead_letters → dead_letter_topic → redriven
                    accepted, dead_letters → spso_and_lag, delivery_counts
    kafka/<topic> → replayed, and spso_and_lag → history, if backfills are configured

The source topics are external assets that need no definition: Dagster shows what depends on them, and their
producers may define them with the same key. Every other key begins with the group's prefix, so that two groups
never have the same key, even on a shared topic.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from sharequeue.dagster.names import GROUP_TAG, asset_tag_value
from sharequeue.dagster.share_group import ShareGroup

TOPIC_PREFIX = "kafka"
"""The prefix of the key of a topic's external asset."""

ACCEPTED, DEAD_LETTERS, DEAD_LETTER_TOPIC, REDRIVEN = (
    "accepted",
    "dead_letters",
    "dead_letter_topic",
    "redriven",
)
SPSO_AND_LAG, DELIVERY_COUNTS = "spso_and_lag", "delivery_counts"
REPLAYED, HISTORY = "replayed", "history"
DEAD_LETTER_TOPIC_CONFIG = "errors.deadletterqueue.topic.name"


@dataclass(frozen=True, slots=True)
class AssetData:
    """An asset, for a translation: its internal name and its group."""

    name: str
    """`accepted`, `dead_letters`, …, or a summary's name."""
    group: ShareGroup


Translate = Callable[[dg.AssetSpec, AssetData], dg.AssetSpec]
"""Changes our spec of an asset into the user's: another key, further tags, another group."""


class Lineage:
    """The specs of a share group's assets, translated, with the dependencies between them."""

    def __init__(self, group: ShareGroup, translate: Translate = lambda spec, data: spec) -> None:
        self.group = group
        self._translated = {
            name: translate(_base(group, name, *about), AssetData(name, group))
            for name, about in _about(group).items()
        }

    def __getitem__(self, name: str) -> dg.AssetSpec:
        """Return the spec of an asset by its internal name."""
        spec = self._translated[name]
        deps = [self.key(dep) for dep in _DEPS.get(name, (ACCEPTED,))]
        if name in (ACCEPTED, REPLAYED):
            deps = [dg.AssetKey([TOPIC_PREFIX, topic]) for topic in self.group.topics]
        # Whatever a translation has added is kept.
        return spec.replace_attributes(deps=[*deps, *spec.deps])

    def key(self, name: str) -> dg.AssetKey:
        """Return the key of an asset by its internal name."""
        return self._translated[name].key

    @property
    def of_a_run(self) -> list[dg.AssetKey]:
        """Return the keys of the assets that a run of the group's job makes."""
        made = (ACCEPTED, *self.group.summaries, DEAD_LETTERS, SPSO_AND_LAG, DELIVERY_COUNTS)
        return [self.key(name) for name in made]


_DEPS = {
    DEAD_LETTERS: (ACCEPTED,),
    DEAD_LETTER_TOPIC: (DEAD_LETTERS,),
    REDRIVEN: (DEAD_LETTER_TOPIC,),
    SPSO_AND_LAG: (ACCEPTED, DEAD_LETTERS),
    DELIVERY_COUNTS: (ACCEPTED, DEAD_LETTERS),
    HISTORY: (SPSO_AND_LAG,),
}


def _about(group: ShareGroup) -> dict[str, tuple[str, set[str]]]:
    """Return the description and the kinds of each asset."""
    topics = ", ".join(group.topics)
    letters = group.configs.get(DEAD_LETTER_TOPIC_CONFIG)
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
            f"Records that `{group.group}` rejected, or that were delivered too often, written to the dead-letter "
            "topic, each exactly once.",
            {"kafka"},
        ),
        DEAD_LETTER_TOPIC: (
            f"The dead-letter topic{f' `{letters}`' if letters else ''} of `{group.group}`.",
            {"kafka"},
        ),
        REDRIVEN: (
            f"Dead letters of `{group.group}` sent back, each once; a dry run unless `execute` is set.",
            {"kafka"},
        ),
        SPSO_AND_LAG: (
            f"SPSO, lag and records in flight of each share-partition of `{group.group}`; stored in Postgres.",
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
                HISTORY: (
                    f"The figures of each past day of `{group.group}`, counted again from the journal.",
                    {"postgres"},
                ),
            }
            if group.backfill
            else {}
        ),
    }


def _base(group: ShareGroup, name: str, description: str, kinds: set[str]) -> dg.AssetSpec:
    fresh = group.freshness.policy() if group.freshness and name == SPSO_AND_LAG else None
    return dg.AssetSpec(
        key=dg.AssetKey([*group.prefix, name]),
        description=description,
        group_name=group.name,
        kinds=kinds,
        owners=list(group.owners),
        tags={**group.tags, GROUP_TAG: asset_tag_value(group.group)},
        freshness_policy=fresh,
        metadata=_commands(group, name),
    )


def _commands(group: ShareGroup, name: str) -> Mapping[str, Any]:
    """Return the group, and the command that shows or does the same in a shell."""
    topic = group.configs.get(DEAD_LETTER_TOPIC_CONFIG)
    commands = {
        ACCEPTED: f"sharequeue run {group.pipeline}",
        SPSO_AND_LAG: f"sharequeue groups describe --group {group.group}",
        DELIVERY_COUNTS: f"sharequeue groups describe --group {group.group}",
        REPLAYED: f"sharequeue replay {group.pipeline} --day {group.backfill.start}"
        if group.backfill
        else "",
    }
    if topic:
        commands[DEAD_LETTERS] = commands[DEAD_LETTER_TOPIC] = f"sharequeue dlq list {topic}"
        commands[REDRIVEN] = f"sharequeue dlq redrive {topic}"
    return {"share_group": group.group, **({"command": commands[name]} if name in commands else {})}
