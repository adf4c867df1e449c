"""Lease and acknowledge records in a Spark job that does its own writing.

The order is `lease`, `.records`, `.acknowledge`, with any DataFrame code and any writer in between. `run.py` does the
same round by round for a `pipeline`. The locks are renewed meanwhile. Records that are not acknowledged when the
block ends are given back at once. The outcomes are read from durable output, never from memory, so that no record is
accepted whose output is missing. Records are processed at least once: a run that dies after its writer and before its
acknowledgement has written records that are redelivered.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike, fspath
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain.names import plural, whole_number
from sharequeue.domain.results.runs import AcknowledgedRecords, WrittenAtEnd, words_of_losses
from sharequeue.domain.results.table import Shown, Table
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease, SharePartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import TopicInfo
from sharequeue.spark.dead_letters import about_letters, write_letters_at_end
from sharequeue.spark.handler import ACCEPT, HandlerError, check_without_row
from sharequeue.spark.kept_records import KeptFiles
from sharequeue.spark.leasing.budget import MAX_RECORDS, Budget
from sharequeue.spark.leasing.group import (
    OpenedGroup,
    a_member,
    opened,
    report_losses,
    why_nothing,
)
from sharequeue.spark.leasing.renewal import LeaseKeeper, LeasingMember, in_turn, release_held
from sharequeue.spark.ordering.cut import Rows, find_cut, rows_without
from sharequeue.spark.ordering.frames import KeyOrder
from sharequeue.spark.outcomes.acknowledging import Sending, counted, to_send
from sharequeue.spark.outcomes.outcomes import Acknowledgement, acknowledgements
from sharequeue.spark.outcomes.written_by_program import WrittenOutcomes, write_outcomes, written_outcomes
from sharequeue.spark.reading.frame import no_records
from sharequeue.spark.reading.options import ReaderOptions
from sharequeue.spark.reading.source import TopicSource, words_of_leaderless
from sharequeue.spark.spark_jobs import cancellable
from sharequeue.state import State

__all__ = ["LeasedRecords", "Unacknowledged", "lease"]

_log = logging.getLogger(__name__)


class Unacknowledged(UserWarning):
    """Warning that a lease ended without an error and without an acknowledgement, or was never closed."""


@dataclass(slots=True)
class _OpenLease:
    """The resources of an open lease, and what it found. It does not refer to the LeasedRecords, which is therefore
    freed with its last reference.
    """

    source: TopicSource
    keeper: LeaseKeeper
    joined: Membership | None
    infos: Mapping[str, TopicInfo]
    leases: tuple[Lease, ...]
    lost: int
    why_nothing: str | None
    sending: Sending
    order: KeyOrder | None
    """The order of the records by key, if the group is ordered."""
    kept: KeptFiles | None = None
    """The raw records that the group keeps."""
    wanted: dict[int, Acknowledgement] = field(default_factory=dict)
    """The acknowledgements that were to be sent, by lease id."""
    dead_letters: WrittenAtEnd | None = None

    def records(self, leases: Sequence[Lease]) -> DataFrame:
        """Return the records of leases, those that the group keeps from files."""
        kept = self.kept
        return self.source.records(leases) if kept is None else kept.records(leases, kept.find(leases))


class LeasedRecords(Shown):
    """The result of `lease`: a context manager, or `open` and `close`. Truthy if anything was leased, even after
    the block ends.
    """

    def __init__(self, group: str, begin: Callable[[ExitStack], _OpenLease], without_row: str | None) -> None:
        self.leases: tuple[Lease, ...] = ()
        """The leases, one for each share-partition that had records to lease."""
        self.why_nothing: str | None = None
        """The reason why nothing was leased although records remain; None if there is no remark."""
        self.lost = 0
        """Records of the group that retention removed before they were processed, since a lease or a run last
        reported any."""
        self._group = group
        self._begin = begin
        self._without_row = without_row
        self._opened: _OpenLease | None = None
        self._ends: ExitStack | None = None
        self._process = 0
        self._written: WrittenOutcomes | None = None

    def open(self) -> Self:
        """Lease the records, and renew their locks until `close`; do nothing if it is open.

        Raises UnknownTopicOrPartition for a topic that does not exist, UnknownTopicId where all were deleted or
        recreated, SparkNotReady, SettingMissing, and the errors of joining and acquiring.
        """
        if self._ends is None:
            with ExitStack() as stack:
                self._opened = found = self._begin(stack)
                self._process = os.getpid()
                self.leases, self.lost, self.why_nothing = found.leases, found.lost, found.why_nothing
                self._written = None
                self._ends = stack.pop_all()
            if self.why_nothing is not None:
                _log.warning("nothing was leased: %s", self.why_nothing)
        return self

    def close(self) -> None:
        """Give back what is not acknowledged, and close what `open` made; do nothing if it is closed."""
        self._end(None, None, None)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(kind, error, trace)

    def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ends, self._ends = self._ends, None
        if ends is None:
            return
        if os.getpid() != self._process:
            ends.pop_all()  # a forked child: these resources are its parent's
            return
        if error is None and self._left:
            try:
                warnings.warn(
                    f"lease({self._group!r}) ended without an acknowledgement: {_records(self._left)} will "
                    "be given back and delivered again, in parts, as suspects. Write the outcomes and call "
                    "acknowledge()",
                    Unacknowledged,
                    stacklevel=3,
                )
            except Unacknowledged:  # warnings may be errors
                ends.__exit__(*sys.exc_info())
                raise
        ends.__exit__(kind, error, trace)

    def __del__(self) -> None:
        """Warn that it was never closed. Its locks expire: the garbage collector may run in any thread, so nothing is
        given back here.
        """
        opened = getattr(self, "_opened", None)
        if opened is None or self._ends is None or os.getpid() != self._process:
            return
        opened.keeper.abandon()
        if opened.joined is not None:
            opened.joined.abandon()
        waiting = bool(self._left)
        what = (
            f"{_records(self._left)} will be delivered again when the locks lapse"
            if waiting
            else "nothing is locked"
        )
        warnings.warn(
            f"lease({self._group!r}) was opened and never closed: {what}. Call close(), or use a `with` block",
            Unacknowledged if waiting else ResourceWarning,
            stacklevel=2,
        )

    @property
    def dead_letters(self) -> WrittenAtEnd | None:
        """The dead letters of the group that were written at the end of the block; None if none waited or a service
        writes them.
        """
        return self._opened.dead_letters if self._opened is not None else None

    def _at_work(self, *, waiting: bool = False) -> _OpenLease:
        """Return the open lease. Raises LockLost, and RuntimeError if nothing was ever leased.

        With `waiting` also raises HandlerError if its records were already acknowledged or given back.
        """
        if self._opened is None:
            raise RuntimeError(
                "nothing is leased yet: use `with lease(…) as leased`, or `leased = lease(…).open()`"
            )
        self._opened.keeper.check()
        if waiting and self.leases and not self._left:
            raise HandlerError("these records were already acknowledged, which is possible only once")
        if waiting and self._ends is None:
            raise HandlerError("the lease has ended, and its records were given back: lease them again")
        return self._opened

    @property
    def _left(self) -> list[Lease]:
        """The leases that are not acknowledged."""
        done = self._opened.sending.done if self._opened is not None else {}
        return [lease for lease in self.leases if lease.lease_id not in done]

    def __bool__(self) -> bool:
        return bool(self.leases)

    def table(self) -> Table:
        """Return a row for each share-partition."""
        rows = [
            (
                str(lease.share_partition),
                lease.offsets.count,
                str(lease.offsets.first),
                str(lease.offsets.end - 1),
                max(delivery.delivery_count for delivery in lease.deliveries),
            )
            for lease in self.leases
        ]
        columns = ("share-partition", "records", "first", "last", "deliveries")
        lost = words_of_losses(self._group, self.lost) if self.lost else None
        return Table(f"leased {plural(self.count, 'record')}", columns, rows, (self.why_nothing, lost))

    @property
    def count(self) -> int:
        """The number of leased offsets, including those that the log does not have."""
        return sum(lease.offsets.count for lease in self.leases)

    @property
    def records(self) -> DataFrame:
        """The leased records: `topic, partition, offset, timestamp, timestamp_type, key, value, headers,
        delivery_count, lease_id`; no rows when nothing was leased. If the group is ordered by key, also `key_hash`,
        and without the records that wait for an earlier one of their key.

        Each action reads the topic again, and reads the same records: the leased offsets do not change. Raises
        LockLost.
        """
        work = self._at_work()
        records = work.records(self.leases) if self.leases else no_records(work.source.spark)
        return records if work.order is None else work.order.in_turn(records, self.leases)

    def check(self) -> None:
        """Raise LockLost if the lock on these records is lost. Call this before a side effect of your own."""
        self._at_work()

    def write(self, outcomes: DataFrame, folder: str | PathLike[str]) -> str:
        """Write the outcomes as Parquet into a folder for this lease only, below `folder`; return its path.

        `acknowledge()` then reads only that folder. A second write below `folder` removes the first. `folder` is a
        path, or a URI as the settings' `output`. Raises SettingInvalid, OutputNotReachable, OutputFull, LockLost, and
        HandlerError after the acknowledgement.
        """
        source = self._at_work(waiting=True).source
        self._written = write_outcomes(source, self.leases, outcomes, fspath(folder), self._written)
        return self._written.folder

    def acknowledge(self, outcomes: DataFrame | str | PathLike[str] | None = None) -> AcknowledgedRecords:
        """Acknowledge all leased records by their written outcomes. This can be done once and cannot be undone. After
        an error it can be called again, for what is not acknowledged yet.

        `outcomes` is the folder of Parquet files that the block wrote, or a DataFrame that reads what it wrote;
        without it, what `write` wrote. It has `topic, partition, offset` as they were leased, `outcome` (accept,
        release or reject), and `not_before` where a released record must
        wait until a time; without it the group's back-off applies. With `lease_id` the rows of other leases are
        ignored, so that several leases may append to one folder. A record that is in the log and has no row gets the
        outcome `without_row` of `lease`; an offset the log never had is a gap. If the group is ordered by key, the
        outcomes have `key_hash`, too, and a record behind one of its key that is not accepted waits, without a
        delivery, whatever its outcome: it is delivered again, and your output may have it twice.

        Raises HandlerError for outcomes that are not read from storage, contradict each other, name records that were
        not leased, are unknown, or lack a record if `lease` has no `without_row`; OutputDamaged; LockLost; and what
        `acknowledgements` (`outcomes/outcomes.py`) and `State.acknowledge` raise. Then nothing has been acknowledged,
        except after an error of `State.acknowledge`, which acknowledges lease by lease.
        """
        work = self._at_work(waiting=True)
        if not self.leases:
            return AcknowledgedRecords()
        written = self._written if outcomes is None else outcomes
        if written is None:
            raise HandlerError(
                "nothing was written yet: call write() first, or name the folder of the outcomes"
            )
        source = work.source
        seen, rows = written_outcomes(source, self.leases, written, ordered=work.order is not None)
        if work.order is not None:
            without = rows_without(source, self._left, seen, self._without_row or ACCEPT)
            seen = find_cut(work.order, self._left, Rows.of(rows) | without).applied(seen)
        wanted = work.wanted
        wanted |= acknowledgements(source, self._left, seen, work.infos, self._without_row)
        acknowledged = work.sending.send([to_send(lease, wanted[lease.lease_id]) for lease in self.leases])
        # Offsets below the log start can no longer be acknowledged; such a lease ends without an acknowledgement.
        release_held(source.state, [lease for lease in self.leases if wanted[lease.lease_id].lost])
        return AcknowledgedRecords(
            leased=self.count,
            **counted(acknowledged, wanted.values()),
            lag=sum(each.lag for each in acknowledged),
        )


def lease(
    group: str,
    topics: Sequence[str],
    *,
    max_records: int = MAX_RECORDS,
    without_row: str | None = None,
    reader_options: Mapping[str, str] | None = None,
    headers: bool = True,
    settings: Settings | None = None,
    spark: SparkSession | None = None,
    membership: LeasingMember | None = None,
    state: State | None = None,
) -> LeasedRecords:
    """Lease up to `max_records` records of a group's topics for the block: redelivered ones first, then fresh ones.

    In a notebook, `leased = lease(…).open()` in one cell and `leased.close()` in another are the same as the block.

    `without_row` is the outcome of a record without a row: release, accept or reject, or None, which is an error.
    `reader_options` are those of Spark's Kafka connector that do not change which records are read, and override the
    defaults; the isolation level always comes from the group's config `share.isolation.level`. Settings, Spark
    session, membership and state are created when they are not given; a membership that is created here joins the
    group through the service and leaves it at the end of the block.

    The locks are renewed at a third of their duration. Once one is lost, Spark's jobs of the block are cancelled and
    nothing can be acknowledged: the block ends with LockLost. Records that are not acknowledged when it ends are
    given back at once, as suspects, with an Unacknowledged warning if the block ended without an error. After an
    interrupt (KeyboardInterrupt, or anything that is not an Exception) they are given back as by a cancelled run,
    which leaves no suspects and gives no record up. Then the dead letters of the group are written, unless a service
    writes them.

    Raises TypeError if a bound is not a number; ValueError without topics, for a budget below one record, for a
    `without_row` that is not an outcome, and for a reader's option that is not supported; UnknownTopicOrPartition for
    a topic that does not exist, SparkNotReady, SettingMissing, and the errors of joining and acquiring.
    """
    check_without_row(without_row)
    max_records = whole_number("max_records", max_records, 1)
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    options = ReaderOptions.of(reader_options)
    if not names:
        raise ValueError("topics must not be empty: name at least one topic")

    def begin(stack: ExitStack) -> _OpenLease:
        found: _OpenLease | None = None

        def write_letters(kind: type[BaseException] | None, *_: object) -> None:
            if found is not None and (kind is None or issubclass(kind, Exception)):  # not after an interrupt
                found.dead_letters = write_letters_at_end(at.settings, at.state, configs)

        at = stack.enter_context(opened(settings, spark, state, group, names))
        configs = GroupConfigs.load(at.state.database, group)
        source = TopicSource(at.settings, at.state, at.topics, at.spark, options, headers)
        stack.push(write_letters)
        member, join = stack.enter_context(a_member(at.settings, group, names, membership))
        join()
        own = member if membership is None and isinstance(member, Membership) else None
        jobs = stack.enter_context(cancellable(at.spark))
        keeper = stack.enter_context(LeaseKeeper(at.state, member, jobs))
        share_partitions = in_turn(member, names)
        observed = source.observe(share_partitions, names)
        leases = keeper.acquire_within(Budget(max_records), observed.led)
        stack.enter_context(source.outages_are_named(leases))
        lost = report_losses(at.state, group, names)
        why = None if leases else _why_nothing(at, configs, names, share_partitions)
        if observed.leaderless:
            about = words_of_leaderless(observed.leaderless)
            why = None if leases else "; ".join(filter(None, (about, why)))
            if leases:
                _log.warning("%s", about)
        sending = Sending(keeper)
        order = KeyOrder.of(at.state, leases, configs)
        opened_at = (source, keeper, own, observed.infos, tuple(leases), lost, why, sending, order)
        found = _OpenLease(*opened_at, KeptFiles.of(source, configs, names, may_forget=False))
        return found

    return LeasedRecords(group, begin, without_row)


def _records(leases: Sequence[Lease]) -> str:
    return plural(sum(lease.offsets.count for lease in leases), "record")


def _why_nothing(
    at: OpenedGroup, configs: GroupConfigs, topics: Sequence[str], assigned: Sequence[SharePartition]
) -> str | None:
    lost = at.state.figures.lost_topics(configs.group_id, topics)
    there = [topic for topic in topics if topic not in lost]
    nothing = why_nothing(at.state, configs, there, assigned) if there else None
    letters = about_letters(at.settings, at.state, configs, topics)
    return "; ".join(filter(None, (nothing, *map(str, lost.values()), letters))) or None
