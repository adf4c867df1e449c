"""The output of `share-groups`: tables, and the rows of a group's offsets, state or members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from sharequeue.cli.output import row_of
from sharequeue.domain.names import printable
from sharequeue.domain.settings import Settings
from sharequeue.groups.descriptions import GroupDescription
from sharequeue.groups.group_names import awaited_share_partitions
from sharequeue.kafka.topics import Topics
from sharequeue.state import State

__all__ = ["members_view", "offsets_view", "state_view", "table"]


_HEADS = {"COORDINATOR": "COORDINATOR (ID)"}
View = tuple[Sequence[str], list[dict[str, Any]]]
"""The output for one group: its columns and its rows."""


def table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table with these columns, as Kafka's tools print it; `-` for missing values.

    Control characters for terminals are escaped: a member may have any name.
    """
    keys = [name.lower().replace("-", "_").lstrip("#") for name in names]
    cells = [["-" if row.get(key) is None else printable(str(row[key])) for key in keys] for row in rows]
    lines = [[_HEADS.get(name, name) for name in names], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(" ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def offsets_view(group: GroupDescription, state: State, broker: Topics, *, verbose: bool) -> View:
    """Return the start offsets of the group's share-partitions, and their lag."""
    found = state.figures.describe(group.group_id)
    known = broker.describe({each.topic for each in found})
    ends = {
        (topic, partition): log.log_end for topic in known for partition, log in broker.offsets(topic).items()
    }
    rows: list[dict[str, Any]] = []
    for each in found:
        # With the broker's current end: the state may not have observed it yet. The end of another topic, which was
        # created under the name since then, says nothing about this one.
        end = ends.get((each.topic, each.partition))
        lag = None if end is None else max(0, end - each.spso - each.delivery_complete_count)
        if each.topic in known and known[each.topic].topic_id != each.topic_id:
            lag = each.lag
        name = {"group": group.group_id, "topic": each.topic, "partition": each.partition}
        rows.append({**name, "start_offset": each.spso, "lag": lag})
    rows += [
        {"group": group.group_id, "topic": topic, "partition": partition}
        for topic, partition in awaited_share_partitions(state.database, group.group_id)
    ]
    rows.sort(key=lambda row: (row["topic"], row["partition"]))
    epoch = ("LEADER-EPOCH",) if verbose else ()
    return ("GROUP", "TOPIC", "PARTITION", *epoch, "START-OFFSET", "LAG"), rows


def state_view(group: GroupDescription, settings: Settings, *, verbose: bool) -> View:
    """Return the group as one row."""
    url = urlsplit(settings.service_url) if settings.knows("service_url") else None
    row: dict[str, Any] = {
        "group": group.group_id,
        "coordinator": f"{url.hostname}:{url.port}  (-)" if url else None,
        "state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "members": len(group.members),
    }
    epochs = ("GROUP-EPOCH", "ASSIGNMENT-EPOCH") if verbose else ()
    return ("GROUP", "COORDINATOR", "STATE", *epochs, "#MEMBERS"), [row]


def members_view(group: GroupDescription, *, verbose: bool) -> View:
    """Return the members of the group with their assignments."""
    rows: list[dict[str, Any]] = [
        row_of(
            each,
            group=group.group_id,
            consumer_id=each.member_id,
            host=f"/{each.client_host}",
            assignment=each.assigned,
        )
        for each in group.members
    ]
    epoch = ("MEMBER-EPOCH",) if verbose else ()
    return ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", *epoch, "ASSIGNMENT"), rows
