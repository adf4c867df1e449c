# ruff: noqa: RUF009 - figure() returns dataclasses.field()
"""The figures of share groups and share-partitions, each with its unit and its description.

Only this module names a figure. A field is a column of a view: of `group_figures` and of
`share_partition_status`. The SQL that reads figures, the commands, the pages, Dagster's metadata, the help of metrics
and the tables of `docs/reference/figures.md` are made from these fields, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from sharequeue.domain.values import SharePartition

__all__ = [
    "OBSTACLES",
    "Figure",
    "GroupFigures",
    "SharePartitionStatus",
    "column_list",
    "figures_of",
    "words_of",
]

Unit = Literal[
    "records",
    "rows",
    "records/s",
    "offset",
    "offsets",
    "seconds",
    "deliveries",
    "leases",
    "keys",
    "share-partitions",
    "number",
    "time",
    "text",
]


@dataclass(frozen=True, slots=True)
class Figure:
    """The names of a figure in each place. An empty name: it is not shown there."""

    words: str
    """The description, for the docs."""
    unit: Unit = "records"
    title: str = ""
    """Its name on pages."""
    command: str = ""
    """The column of `groups describe`."""
    listed: bool = False
    """Whether the pages' tables of many groups or share-partitions have it too."""
    wide: bool = False
    """Whether that column is shown only with `--verbose`."""
    ended: bool = False
    """Whether that column is in the command's second table, on outcomes."""
    dagster: str = ""
    """The key in Dagster's metadata, which includes the unit."""
    http: str = ""
    """The name in the service's answer about a group."""
    wrong: bool = False
    """Whether an operator must act if it is above 0."""
    name: str = ""
    """The field and the column of the view; filled in by `figures_of`."""


def figure(
    words: str, unit: Unit = "records", title: str = "", command: str = "", *, default: Any = 0, **more: Any
) -> Any:
    """Return a dataclass field for a figure; `more` are further attributes of Figure."""
    return field(default=default, metadata={"figure": Figure(words, unit, title, command, **more)})


@cache
def figures_of(kind: type) -> Sequence[Figure]:
    """Return the figures of GroupFigures or of SharePartitionStatus, in their order."""
    named = ((each.metadata.get("figure"), each.name) for each in fields(kind))
    return tuple(replace(found, name=name) for found, name in named if found)


def column_list(kind: type) -> str:
    """Return the columns of a dataclass's view, as SQL."""
    return ", ".join(each.name for each in fields(kind))


def words_of(kind: type, name: str) -> str:
    """Return the description of a figure as a sentence. Raises KeyError for an unknown name."""
    words = {each.name: each.words for each in figures_of(kind)}[name]
    return f"{words[0].upper()}{words[1:]}."


OBSTACLES = ("window", "transaction", "truncated", "ordered", "open_keys", "unknown")
"""The values of `blocked_by` that no count of records, and no other reason, shows."""
_LAG = "offsets that are not done, those of transaction markers included"
_AVAILABLE = "records that will be delivered again, those included that wait for a later time or are held"
_WAITING = "of the available records, those that wait for a later time, held ones included"
_HELD = "with order by key: records that wait behind an earlier open record of their key"
_OPEN_KEYS = (
    "with order by key: keys with a record that was delivered and is not done, so that later ones wait for it"
)
_LETTER_KEYS = "of the open keys, those that wait until a dead letter is redriven or discarded"


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A share group in records, offsets and seconds; the view ``group_figures``. None is not known."""

    group_id: str
    share_partitions: int = figure(
        "share-partitions of the group", "share-partitions", "share-partitions", listed=True
    )
    lag: int = figure(_LAG, "offsets", "lag", "LAG", dagster="lag_records", listed=True)
    in_flight: int = figure(
        "offsets between SPSO and SPEO, in any state",
        "offsets",
        "in flight",
        dagster="in_flight_records",
        listed=True,
    )
    acquired: int = figure(
        "records held under a lock", title="acquired", command="ACQUIRED", dagster="acquired_records"
    )
    throughput: float | None = figure(
        "records that ended per second, since the oldest report of the last hour, or since a share-partition was"
        " created in that hour; unknown without either, or if nothing ended",
        "records/s",
        "throughput",
        "RATE",
        default=None,
        dagster="throughput_records_per_second",
        listed=True,
    )
    time_to_drain_seconds: float | None = figure(
        "lag divided by throughput: the time needed if nothing new arrives; unknown if throughput is unknown, and"
        " while records are held behind dead letters: they wait for an operator",
        "seconds",
        "time to drain",
        "TIME-TO-DRAIN",
        default=None,
        dagster="time_to_drain_seconds",
        listed=True,
    )
    oldest_age_seconds: float | None = figure(
        "the age of the oldest unfinished record, by its timestamp; the oldest of a share-partition is the one with"
        " the lowest offset, whatever the timestamps of others. In the view, on live pages of the service,"
        " and where the topic cannot be read: the time since the first report that had the record in the log, or"
        " since it was leased, whichever is earlier",
        "seconds",
        "oldest record waits",
        "OLDEST-AGE",
        default=None,
        dagster="oldest_age_seconds",
        listed=True,
    )
    stuck_leases: int = figure(
        "leases whose lock expired ten minutes ago and was not released, or whose member is gone",
        "leases",
        "stuck leases",
        "STUCK-LEASES",
        dagster="stuck_leases",
        listed=True,
        wrong=True,
    )
    available: int = figure(_AVAILABLE, title="available", dagster="available_records")
    suspects: int = figure(
        "of the available records, those whose last delivery ended without an acknowledgement",
        title="suspects",
        dagster="suspect_records",
    )
    archiving: int = figure(
        "records that were given up and whose dead letter is not written",
        title="awaiting dead letter",
        dagster="archiving_records",
        listed=True,
        wrong=True,
    )
    delivery_complete_count: int = figure(
        "records from SPSO on that are done; Kafka's delivery-complete count",
        title="finished past SPSO",
        dagster="delivery_complete_records",
    )
    lost_records: int = figure(
        "records that retention removed before they ended",
        title="lost records",
        dagster="lost_records",
        wrong=True,
    )
    accepted: int = figure("records accepted", title="accepted")
    rejected: int = figure("records rejected", title="rejected")
    exhausted: int = figure("records delivered as often as the group allows", title="exhausted")
    gap: int = figure("offsets that hold no record")
    leases: int = figure("leases that are held", "leases")
    waiting: int = figure(_WAITING)
    held_records: int = figure(
        _HELD, title="held records", command="HELD", dagster="held_records", listed=True
    )
    open_keys: int = figure(_OPEN_KEYS, "keys", "open keys", dagster="open_keys")
    letter_keys: int = figure(
        _LETTER_KEYS, "keys", "keys behind dead letters", dagster="letter_keys", wrong=True
    )
    open_seconds: float | None = figure(
        "the age of the oldest open key: since the first of its open records was not accepted",
        "seconds",
        "oldest open key waits",
        default=None,
        dagster="oldest_open_key_seconds",
    )
    results_waiting: int = figure(
        "accepted rows that are not in the table or topic of their sink yet: the next round or run writes them",
        "rows",
        "results that wait",
        "RESULTS-WAITING",
        wide=True,
        dagster="results_waiting_rows",
    )
    results_oldest_seconds: float | None = figure(
        "the time since the first of these rows were acknowledged",
        "seconds",
        "oldest result waits",
        "RESULTS-OLDEST",
        wide=True,
        default=None,
        dagster="results_oldest_seconds",
    )
    results_held: int = figure(
        "sinks whose rows wait because the table or topic could not be written",
        "number",
        "sinks that cannot be written",
        dagster="results_held_sinks",
        wrong=True,
    )
    finished_records: int | None = figure("records that ended in the window of the throughput", default=None)
    window_seconds: float | None = figure("the window of the throughput", "seconds", default=None)


@dataclass(frozen=True, slots=True)
class SharePartitionStatus:
    """A share-partition (KIP-1226), in offsets and records, as of now; the view ``share_partition_status``.

    ``log_start``, ``log_end`` and ``last_stable_offset`` are what the broker returned at ``observed_at``; ``fault``
    is the reason why lag does not follow the formula. ``paused_reason`` was given by a person or by the circuit
    breaker; ``held_reason`` is why dead letters are not written, if an operator must act.

    ``accepted``, ``rejected``, ``exhausted`` and ``gap`` count all records that ever ended, each in one of them;
    ``lost_records`` are separate. Of the rejected and exhausted, ``no_dlq`` and ``dropped_letters`` have no dead
    letter.
    """

    group_id: str
    topic: str
    partition: int
    spso: int = figure(
        "the share-partition start offset (SPSO): all records below it are done",
        "offset",
        "SPSO",
        "START-OFFSET",
        listed=True,
        http="start_offset",
    )
    speo: int = figure(
        "the share-partition end offset (SPEO): the offset after the last record in flight",
        "offset",
        "SPEO",
        listed=True,
        http="end_offset",
    )
    log_start: int = figure("the start of the log, as last seen", "offset", "log start")
    log_end: int = figure(
        "the end of the log, as last seen",
        "offset",
        "log end",
        "END-OFFSET",
        listed=True,
        wide=True,
        http="log_end_offset",
    )
    lag: int = figure(_LAG, "offsets", "lag", "LAG", listed=True, http="lag")
    in_flight: int = figure("offsets from SPSO to SPEO, in any state", "offsets", "window")
    acquired: int = figure(
        "records held under a lock", title="acquired", command="ACQUIRED", listed=True, http="acquired"
    )
    available: int = figure(
        _AVAILABLE,
        title="available",
        command="AVAILABLE",
        listed=True,
        http="available",
    )
    waiting: int = figure(
        _WAITING,
        title="wait for a later time",
        command="WAITING",
    )
    held_records: int = figure(
        _HELD, title="held records", command="HELD", wide=True, listed=True, http="held_records"
    )
    open_keys: int = figure(_OPEN_KEYS, "keys", "open keys", "OPEN-KEYS", wide=True, http="open_keys")
    letter_keys: int = figure(
        _LETTER_KEYS,
        "keys",
        "keys behind dead letters",
        "LETTER-KEYS",
        wide=True,
        wrong=True,
        http="letter_keys",
    )
    open_offset: int | None = figure(
        "the first open record of the key that is open for the longest time",
        "offset",
        command="OPEN-OFFSET",
        default=None,
        wide=True,
        http="open_offset",
    )
    open_since: datetime | None = figure(
        "since when that key is open",
        "time",
        command="OPEN-SINCE",
        default=None,
        wide=True,
        http="open_since",
    )
    suspects: int = figure(
        "of the available records, those whose last delivery ended without an acknowledgement: one of them may have"
        " killed its process, so they are delivered again in parts",
        title="suspects",
        command="SUSPECTS",
        listed=True,
        wide=True,
    )
    waiting_until: datetime | None = figure(
        "when the first of these may be delivered", "time", command="WAITING-UNTIL", default=None, wide=True
    )
    archiving: int = figure(
        "records that were given up and whose dead letter is not written",
        title="awaiting dead letter",
        command="ARCHIVING",
        listed=True,
        wrong=True,
        http="archiving",
    )
    delivery_complete_count: int = figure(
        "records from SPSO on that are done", title="finished past SPSO", listed=True
    )
    leases: int = figure("leases that are held", "leases", "leases", listed=True)
    next_expiry: datetime | None = figure(
        "when the next lock expires", "time", command="NEXT-EXPIRY", default=None, wide=True
    )
    oldest_offset: int | None = figure(
        "the lowest offset that is not done",
        "offset",
        "oldest offset",
        "OLDEST-OFFSET",
        default=None,
        listed=True,
        wide=True,
    )
    oldest_since: datetime | None = figure(
        "since when that offset is leased or archiving",
        "time",
        command="OLDEST-SINCE",
        default=None,
        wide=True,
    )
    accepted: int = figure("records accepted", command="ACCEPTED", ended=True)
    rejected: int = figure(
        "records rejected by their holder or by `state dead-letter`", command="REJECTED", ended=True
    )
    exhausted: int = figure(
        "records that were released at their last delivery, or whose last delivery had no acknowledgement",
        command="EXHAUSTED",
        ended=True,
    )
    gap: int = figure("offsets that hold no record", "offsets", command="GAP", ended=True)
    no_dlq: int = figure(
        "of the rejected and exhausted: the group had no dead-letter topic when they ended, so there is no dead"
        " letter",
        command="NO-DLQ",
        ended=True,
    )
    dropped_letters: int = figure(
        (
            "of the rejected and exhausted: the dead letter could not be written, and the group is "
            "configured to drop it in that case"
        ),
        command="DROPPED-LETTERS",
        ended=True,
        wide=True,
    )
    lost_records: int = figure(
        "records that retention removed before they ended; they are in no other column, and a leased one is lost"
        " until its holder accepts it",
        title="lost records",
        command="LOST-RECORDS",
        ended=True,
        wrong=True,
    )
    highest_delivery_count: int = figure(
        "the most deliveries of a record in flight", "deliveries", "most deliveries", listed=True
    )
    blocked_by: str | None = figure(
        "why nothing can be leased although there is lag, in one word: `paused`, `breaker`, `window`, `transaction`,"
        " `leased`, `waiting`, `dead_letters`, `ordered`, `open_keys`, `topic_deleted`, `topic_recreated`,"
        " `truncated`",
        "text",
        command="BLOCKED-BY",
        default=None,
        wide=True,
        http="blocked_by",
    )
    blocked_until: datetime | None = figure(
        "when that may change, if it is known",
        "time",
        command="BLOCKED-UNTIL",
        default=None,
        wide=True,
        http="blocked_until",
    )
    blocked_offset: int | None = figure(
        "the offset of the blocking record",
        "offset",
        command="BLOCKED-OFFSET",
        default=None,
        wide=True,
        http="blocked_offset",
    )
    blocked_reason: str | None = None
    truncated_to: int | None = None
    status: str = figure(
        "`active`, or `topic_recreated` if the topic was deleted and created again",
        "text",
        "status",
        default="active",
        http="status",
    )
    state_epoch: int = figure(
        "a number that increases with each reset of offsets",
        "number",
        "state epoch",
        "STATE-EPOCH",
        wide=True,
        http="state_epoch",
    )
    observed_at: datetime | None = figure(
        "when the log was seen last", "time", "log seen (UTC)", default=None
    )
    topic_id: str = ""
    last_stable_offset: int = 0
    oldest_state: str | None = None
    paused_reason: str | None = None
    fault: str | None = None
    held_reason: str | None = None

    @property
    def share_partition(self) -> SharePartition:
        """The name of the share-partition."""
        return SharePartition(self.group_id, self.topic, self.partition)

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be leased, unless a count of records, or another reason of this row, shows it."""
        # With a lease, that of another member is the reason, and the acquired records show it.
        if self.blocked_by not in OBSTACLES or (self.blocked_by == "ordered" and self.acquired):
            return None
        until = (
            f", until {self.blocked_until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
            if self.blocked_until
            else ""
        )
        return f"nothing can be leased: {self.blocked_reason}{until}"
