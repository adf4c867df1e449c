"""The keys of the assets of queues: each asset has one of its own, of parts that Dagster allows.

A translation with a constant key would make one asset of several. Dagster notices only some of these mistakes, and
names neither the assets nor the field.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import dagster as dg

from sharequeue.dagster.lineage import Lineage, Translate, topics_of, unchanged, written_topics
from sharequeue.dagster.names import is_part_of_key
from sharequeue.dagster.share_group import TOPIC_PREFIX, ShareGroup

__all__ = ["require_own_keys", "topic_assets"]

_OF_TOPICS = "each topic needs a key of its own, such as `key: raw/{{ topic }}` in `topic_translation`"
_OF_CLUSTERS = f"{_OF_TOPICS}, and another `topic_prefix` stands for another Kafka cluster"
_OF_ASSETS = (
    "each asset of a queue needs a key of its own, such as `key: lake/{{ group }}/{{ asset }}` in `translation`, or "
    "a `key_prefix` that no other queue has"
)


@dataclass(frozen=True, slots=True)
class _Keyed:
    """Something that has an asset key."""

    key: dg.AssetKey
    thing: tuple[str, ...]
    """What it is: the same for all queues that use a topic."""
    words: str
    rule: str


def topic_assets(groups: Iterable[ShareGroup], translate: Translate = unchanged) -> list[dg.AssetSpec]:
    """Return an external asset for each topic that these share groups read or write.

    Pass the same list as `topics` to `share_group_defs` of each of them: in one code location a topic is defined
    once. Raises ValueError if two topics, or a topic and another asset, have one key.
    """
    lineages = [Lineage(group, translate) for group in groups]
    require_own_keys(lineages)
    return topics_of(lineages)


def require_own_keys(lineages: Iterable[Lineage]) -> None:
    """Raise ValueError if two topics or other assets of these queues have one key, or if a key has a part that
    Dagster does not allow. A topic has one key in all queues.
    """
    first: dict[dg.AssetKey, _Keyed] = {}
    for lineage in sorted(lineages, key=lambda each: each.group.group):
        for each in (*_topics(lineage), *_assets(lineage)):
            for part in each.key.path:
                if not is_part_of_key(part):
                    raise ValueError(
                        f"{each.words} gets the asset key {each.key.to_user_string()!r} with the part {part!r}: "
                        f"expected letters, digits, `_`, `-` and `.` in each part; {each.rule}"
                    )
            other = first.setdefault(each.key, each)
            if other.thing != each.thing:
                raise ValueError(
                    f"{other.words} and {each.words} both get the asset key {each.key.to_user_string()!r}: "
                    f"{'; '.join(dict.fromkeys((other.rule, each.rule)))}"
                )


def _topics(lineage: Lineage) -> Iterator[_Keyed]:
    """Yield the topics that a group reads or writes. Another prefix stands for another Kafka cluster."""
    group = lineage.group
    prefix = "/".join(group.topic_prefixes)
    of_cluster, rule = ("", _OF_TOPICS) if prefix == TOPIC_PREFIX else (f" of {prefix}", _OF_CLUSTERS)
    for topic in sorted({*group.topics, *written_topics(group).values()}):
        words = f"the topic {topic!r}{of_cluster} (share group {group.group!r})"
        yield _Keyed(lineage.topic_key(topic), ("topic", prefix, topic), words, rule)


def _assets(lineage: Lineage) -> Iterator[_Keyed]:
    """Yield the other assets of a group."""
    group = lineage.group.group
    for name in lineage.names:
        words = f"the asset {name!r} of share group {group!r}"
        yield _Keyed(lineage.key(name), ("asset", group, name), words, _OF_ASSETS)
