"""The names of a share group's definitions in Dagster.

A name is given (`name` in the `defs.yaml`), or made from the group id. Kafka allows any non-empty text as a group id;
Dagster allows letters, digits and underscores in the names of jobs, sensors, schedules, groups and checks, and
refuses Python's keywords and some other words. The encoding keeps the name readable and is not reversible, so two
groups can get the same name, which is refused at load. The group id itself is always in the tag ``sharequeue/group``
and in metadata, unencoded.

A group id is unique in one Kafka cluster only, and a Dagster instance may have queues of two. So what belongs to a
queue in the instance (its runs, its partitions) is found by the prefix of its asset keys, which is unique there.
"""

import keyword
import re
from collections.abc import Iterable

from sharequeue.domain.offsets import OffsetSet

OWN_TAGS = "sharequeue/"
"""What the names of our own tags begin with."""
GROUP_TAG = "sharequeue/group"
ASSET_TAG = "sharequeue/asset"
"""On an asset: its name here, such as `accepted`, whatever its key is."""
MEMBER_TAG = "sharequeue/member"
LEASES_TAG = "sharequeue/leases"
"""On a run: its group, its member, and the ids of its leases. The group's tag is on its assets too."""
CLIENT_ID_PREFIX = "dagster-run-"
"""The prefix of a member's client id, followed by the id of its run, so that the run of a member can be found."""
QUEUE_TAG = "sharequeue/queue"
"""On each run of a queue's jobs: the prefix of its asset keys, by which its runs are found."""
PIPELINE, SUMMARY, LAUNCHED = "pipeline", "summary", "launched_by"
"""In the metadata of an asset whose rows are in files: its pipeline, the name of a summary, and the Pipes client that
starts its driver.
"""
SUITE_STEP = "_dead_letter_suite"
"""The end of the name of the step that checks dead letters."""
REPLAY_TAG = "sharequeue/replay"
"""On a run that replays records of a group, in place of the group's tag: it is not a run of the group."""

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_]")
_PART_OF_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_RESERVED_BY_DAGSTER = frozenset(
    {"context", "conf", "config", "meta", "arg_dict", "dict", "input_arg_dict", "output_arg_dict"}
    | {"int", "str", "float", "bool", "input", "output", "type"}
)


_NOT_ALLOWED_IN_TAGS = re.compile(r"[^A-Za-z0-9_.-]")
_LONGEST_TAG_VALUE = 63
_MOST_LEASE_RUNS = 20


class NameCollision(ValueError):
    """Two share groups have the same name in Dagster; rename one of them."""

    def __init__(self, name: str, first: str, second: str, places: str = "") -> None:
        super().__init__(
            f"the share groups {first!r} and {second!r} both get the name {name!r} in Dagster, which allows "
            f"only letters, digits and underscores: set `name` of one of them{places and f' ({places})'}"
        )
        self.name, self.first, self.second = name, first, second


def dagster_name(group_id: str) -> str:
    """Return the name of ``group_id`` in Dagster: letters, digits and underscores, with `_` for all others.

    A reserved word gets an underscore at its end. Raises ``ValueError`` for an empty group id, which Kafka refuses
    too.
    """
    if not group_id:
        raise ValueError("group.id must not be empty")
    name = _NOT_ALLOWED.sub("_", group_id)
    return name if is_dagster_name(name) else f"{name}_"


def is_dagster_name(text: str) -> bool:
    """Return whether Dagster allows a text as a name."""
    is_reserved = keyword.iskeyword(text) or text in _RESERVED_BY_DAGSTER
    return bool(text) and not _NOT_ALLOWED.search(text) and not is_reserved


def is_part_of_key(text: str) -> bool:
    """Return whether Dagster allows a text as a part of an asset's key: letters, digits, `_`, `-` and `.`."""
    return _PART_OF_KEY.fullmatch(text) is not None


def asset_tag_value(group_id: str) -> str:
    """Return a group's id as an asset tag's value, for which Dagster limits length and characters.

    A run's tag has no such limits, and has the id unchanged.
    """
    return _NOT_ALLOWED_IN_TAGS.sub("_", group_id)[:_LONGEST_TAG_VALUE]


def require_no_own_tags(tags: Iterable[str]) -> None:
    """Raise ValueError if a tag of a user has a name of ours: then one of the two would be lost."""
    for tag in tags:
        if tag.startswith(OWN_TAGS):
            raise ValueError(f"tags: {tag!r} begins with {OWN_TAGS}, as our own tags do: use another name")


def lease_tag_value(lease_ids: Iterable[int]) -> str:
    """Return the ids of a run's leases as a tag: `3-7,9`. For too many, the first ones and the total."""
    ids = sorted(set(lease_ids))
    runs = [
        f"{first}-{last}" if last > first else str(first)
        for first, last in OffsetSet.from_runs(ids, ids).runs()
    ]
    kept = runs[:_MOST_LEASE_RUNS]
    return ",".join(kept) + (f",… ({len(ids)} leases)" if len(runs) > len(kept) else "")
