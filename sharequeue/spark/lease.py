"""How does a Spark job of one's own lease records, and acknowledge them?

`lease` → `.records` → `.acknowledge`, with any DataFrame code in between and any writer. `run.py` does the same
round by round for a `pipeline`. The locks are kept meanwhile. What is not acknowledged when the block
ends is given back at once. The outcomes are read from what was durably written, never from memory, so that nothing is
accepted that is not there. Records are processed at least once: a run that dies after its writer and before its
acknowledgement has written records that come again.
"""

from __future__ import annotations

import itertools
import logging
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike

from pyspark.sql import DataFrame, SparkSession

from sharequeue.database import Database
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import TopicInfo, Topics
from sharequeue.settings import Settings
from sharequeue.spark.contract import HandlerError, check_meanings
from sharequeue.spark.draining import DrainAtEnd, Drained
from sharequeue.spark.leasing.budget import MAX_RECORDS, Budget
from sharequeue.spark.leasing.member import Member
from sharequeue.spark.leasing.nothing_leased import require_topics, why_nothing
from sharequeue.spark.leasing.renewal import LeaseKeeper, release_held
from sharequeue.spark.outcomes.acknowledging import ToAcknowledge, acknowledge_all
from sharequeue.spark.outcomes.missing import acknowledgements
from sharequeue.spark.outcomes.retries import Backoff
from sharequeue.spark.outcomes.written_by_program import written_outcomes
from sharequeue.spark.reading.frame import no_records
from sharequeue.spark.reading.plan import MAX_SCANS
from sharequeue.spark.reading.sizes import RecordSizes
from sharequeue.spark.reading.source import Source
from sharequeue.spark.session import cancellable, spark_session
from sharequeue.spark.showing import Shown, Table
from sharequeue.state import State
from sharequeue.values import Lease, SharePartition

__all__ = ["AcknowledgedRecords", "LeasedRecords", "Unacknowledged", "lease"]

_log = logging.getLogger(__name__)

_turns = itertools.count()


class Unacknowledged(UserWarning):
    """A block of `lease` ended well and acknowledged nothing; the message says how many records come again."""


@dataclass(frozen=True, slots=True)
class AcknowledgedRecords(Shown):
    """What an acknowledgement did, in records.

    `exhausted` are releases after the last delivery, `gaps` offsets the log never had, `dropped` records that the
    log has and the outcomes did not name, `lost` what retention took between lease and read.
    """

    leased: int
    accepted: int
    released: int
    rejected: int
    gaps: int
    exhausted: int
    dropped: int
    lost: int
    lag: int

    def table(self) -> Table:
        """Return its figures; of the rare ones those that there are."""
        names = ("accepted", "released", "rejected", "gaps", "exhausted", "dropped", "lost")
        found = [name for at, name in enumerate(names) if at < 3 or getattr(self, name)]
        title = f"acknowledged {self.leased:,} records; lag {self.lag:,}"
        return Table(title, found, [[getattr(self, name) for name in found]])


class LeasedRecords(Shown):
    """What one block of `lease` holds. True when there is anything; `dead_letters`: what its end wrote of them."""

    def __init__(
        self,
        source: Source,
        keeper: LeaseKeeper,
        leases: Sequence[Lease],
        infos: Mapping[str, TopicInfo],
        dropped: str | None,
        unknown: str | None,
        backoff: Backoff,
        why_nothing: str | None,
    ) -> None:
        self.leases = tuple(leases)
        """One for each share-partition that had something to lease."""
        self.why_nothing = why_nothing
        """Why nothing was leased although not all is done; None where there is nothing to say."""
        self._unknown = unknown
        self._backoff = backoff
        self._source = source
        self._keeper = keeper
        self._infos = infos
        self._dropped = dropped
        self._acknowledged = False
        self.dead_letters: Drained | None = None

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
        return Table(f"leased {self.count:,} records", columns, rows, (self.why_nothing,))

    @property
    def count(self) -> int:
        """How many offsets are leased; those that the log does not have are among them."""
        return sum(lease.offsets.count for lease in self.leases)

    @property
    def records(self) -> DataFrame:
        """The leased records: `topic, partition, offset, timestamp, timestamp_type, key, value, headers,
        delivery_count, lease_id`; without rows when nothing was leased.

        Each action reads the topic anew, the same records: what was leased does not change. Raises LockLost.
        """
        self._keeper.check()
        if not self.leases:
            return no_records(self._source.spark)
        return self._source.records(self.leases)

    def check(self) -> None:
        """Raise LockLost when these records are somebody else's by now. Before a side effect of one's own."""
        self._keeper.check()

    def acknowledge(self, outcomes: DataFrame | str | PathLike[str]) -> AcknowledgedRecords:
        """Acknowledge everything that is leased, by what was written: once, and for good.

        `outcomes` is the folder of Parquet files that the block wrote, or a DataFrame that reads what it wrote:
        `topic, partition, offset` as they were leased, `outcome` (accept, release or reject; anything else is what
        `unknown` of `lease` says), and `not_before` where a released record shall wait until a time, else it waits
        for the group's back-off; other columns as it likes. With a column `lease_id` the rows of other leases are
        left alone, so that one folder may be appended to. A record the log has and no row names gets the outcome
        `dropped` of `lease`; an offset the log never had is a gap.

        Raises HandlerError for outcomes that are not read from storage, contradict themselves, name what was not
        leased, are unknown, or lack a record, unless `lease` was given a meaning for these; LockLost; and what
        `acknowledgements` (`outcomes/missing.py`) and `State.acknowledge` raise. Nothing has been acknowledged then,
        except by `State.acknowledge`, which acknowledges lease by lease.
        """
        self._keeper.check()
        if self._acknowledged:
            raise HandlerError("these records were acknowledged already: they are acknowledged once")
        if not self.leases:
            return AcknowledgedRecords(0, 0, 0, 0, 0, 0, 0, 0, 0)
        seen = written_outcomes(self._source, self.leases, outcomes, self._unknown)
        wanted = acknowledgements(self._source, self.leases, seen, self._infos, self._dropped)
        self._acknowledged = True
        now = self._source.state.now()
        wanted = {at.lease_id: self._backoff.apply(at, wanted[at.lease_id], now) for at in self.leases}
        acknowledged = acknowledge_all(
            self._source.state,
            self._keeper,
            [ToAcknowledge(lease, wanted[lease.lease_id]) for lease in self.leases],
        )
        # Below the log start nothing can be acknowledged any more; such a lease ends without it.
        release_held(self._source.state, [lease for lease in self.leases if wanted[lease.lease_id].lost])
        return AcknowledgedRecords(
            leased=self.count,
            accepted=sum(a.accepted for a in acknowledged),
            released=sum(a.released for a in acknowledged),
            rejected=sum(a.rejected for a in acknowledged),
            gaps=sum(a.gaps for a in acknowledged),
            exhausted=sum(a.exhausted for a in acknowledged),
            dropped=sum(a.dropped for a in wanted.values()),
            lost=sum(a.lost.count for a in wanted.values()),
            lag=sum(a.lag for a in acknowledged),
        )


@contextmanager
def lease(
    group: str,
    topics: Sequence[str],
    *,
    max_records: int = MAX_RECORDS,
    max_bytes: int = 0,
    lock_duration_ms: int | None = None,
    dropped: str | None = None,
    unknown: str | None = None,
    isolation_level: str | None = None,
    reader_options: Mapping[str, str] | None = None,
    headers: bool = True,
    max_scans: int = MAX_SCANS,
    settings: Settings | None = None,
    spark: SparkSession | None = None,
    membership: Member | None = None,
    state: State | None = None,
) -> Iterator[LeasedRecords]:
    """Lease up to `max_records` records of a group's topics for the block: redelivered ones first, then fresh ones.

    `max_bytes` bounds the lease further, by the mean size of the records, unless it is 0. `dropped` is the
    outcome of a record that the outcomes do not name, `unknown` that of a record with another outcome or null:
    release, accept or reject, or None, which makes an error of it. Lock duration and isolation level are the
    group's own when None. `reader_options` are those of Spark's Kafka connector and win over ours. Settings, Spark
    session, membership and state are made when they are not given; a membership that is made here joins the group
    through the service and leaves it at the end of the block.

    The locks are renewed at a third of their duration. Once one is lost, Spark's jobs of the block are cancelled
    and nothing can be acknowledged: the block ends in LockLost. What is not acknowledged when it ends is given
    back at once, with an Unacknowledged warning where the block ended well, and is suspect; after an interrupt
    (KeyboardInterrupt, or anything that is no Exception) it is given back as by a cancelled run, which leaves no
    suspects and gives no record up. Where no service does, dead letters of the group are then written.

    Raises ValueError without topics, for a budget below one record or a `dropped` or `unknown` that is no outcome,
    UnknownTopicOrPartition for a topic that is not there, SparkNotReady, SettingMissing, and the errors of joining
    and acquiring.
    """
    check_meanings(dropped, unknown)
    if max_records < 1:
        raise ValueError(f"max_records is {max_records}: expected how many records to lease, 1 or more")
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise ValueError("there is nothing to lease from: name at least one topic")
    process = os.getpid()
    with ExitStack() as stack:
        settings = settings or Settings.load()
        session = spark or spark_session(settings, f"lease of {group}")
        database = stack.enter_context(Database.open(settings))
        broker = stack.enter_context(Topics(settings))
        State(database).administration.check_cluster(broker.cluster_id())
        require_topics(broker, names)
        configs = GroupConfigs.load(database, group)
        source = Source(
            settings,
            state or State(database),
            broker,
            session,
            isolation_level or configs.isolation_level,
            dict(reader_options or {}),
            headers,
            max_scans,
        )
        ending = stack.enter_context(DrainAtEnd(settings, source.state, configs))
        member = membership
        if member is None:
            joined = stack.enter_context(Membership(settings.service_url, group, names))
            joined.join()
            member = joined
        cancel = stack.enter_context(cancellable(session))
        keeper = stack.enter_context(LeaseKeeper(source.state, member, cancel))
        share_partitions = _in_turn(member, names)
        infos = source.observe(share_partitions)
        budget = Budget(max_records)
        if max_bytes:
            sizes = stack.enter_context(RecordSizes(settings, source.isolation_level))
            means = sizes.measure(share_partitions, source.state.figures.describe(group))
            budget = Budget(max_records, max_bytes, means)
        leases = keeper.acquire_within(budget, share_partitions, lock_duration_ms)
        reason = None if leases else why_nothing(source.state, configs, names)
        if reason is not None:
            _log.warning("nothing was leased: %s", reason)
        leased = LeasedRecords(source, keeper, leases, infos, dropped, unknown, Backoff.of(configs), reason)
        ending.report_to = leased
        try:
            yield leased
        finally:
            if os.getpid() != process:
                stack.pop_all()  # a forked child: what is open here is its parent's
        if leased and not leased._acknowledged and os.getpid() == process:
            warnings.warn(
                f"the block of lease({group!r}) ended without an acknowledgement: its {leased.count:,} records "
                "are given back and come again, in parts, as suspects. Write the outcomes and call acknowledge()",
                Unacknowledged,
                stacklevel=4,
            )


def _in_turn(member: Member, topics: Sequence[str]) -> list[SharePartition]:
    """Return what is assigned of these topics; each time and each member begins at another, so that none starves."""
    assigned = sorted(sp for sp in member.assignment if sp.topic in topics)
    turn = (next(_turns) + zlib.crc32(member.member_id.encode())) % len(assigned) if assigned else 0
    return assigned[turn:] + assigned[:turn]
