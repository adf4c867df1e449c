"""How does a Spark job of one's own lease records, and answer them?

`lease` → `.records` → `.acknowledge`, with any DataFrame code in between and any writer: the small public face of
what `run.py` does round by round for a `pipeline`. The locks are kept meanwhile, and whatever leaves the block
unanswered is given back at once. The answers are read from what was durably written, never from memory, so that
nothing is accepted that is not there. Records are processed at least once: a run that dies after its writer and
before its acknowledgement has written records that come again.
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
from os import PathLike, fspath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType

from sharequeue.database import Database
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import TopicInfo, Topics
from sharequeue.settings import Settings
from sharequeue.spark.draining import DrainAtEnd, Drained
from sharequeue.spark.job import OUTCOMES, RELEASE, HandlerError, check_meanings
from sharequeue.spark.leasing.nothing import require_topics, why_nothing
from sharequeue.spark.leasing.renewal import Budget, LeaseKeeper, Member, release_held
from sharequeue.spark.outcomes.acknowledging import Given, acknowledge_all
from sharequeue.spark.outcomes.outcomes import Seen, seen_in, with_outcomes
from sharequeue.spark.outcomes.retries import Backoff
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.sharing import refuse_unshared
from sharequeue.spark.output.stored import read_parquet
from sharequeue.spark.reading.frame import no_records
from sharequeue.spark.reading.plan import MAX_SCANS
from sharequeue.spark.reading.sizes import RecordSizes
from sharequeue.spark.reading.source import Source
from sharequeue.spark.run import MAX_RECORDS
from sharequeue.spark.session import cancellable, spark_session
from sharequeue.state import State
from sharequeue.values import Lease, SharePartition

__all__ = ["Answered", "LeasedRecords", "Unacknowledged", "lease"]

_log = logging.getLogger(__name__)

_NO_LEASE = -1
_WRITTEN_AS = {"topic": "string", "partition": "int", "offset": "long", "outcome": "string"}
_turns = itertools.count()


class Unacknowledged(UserWarning):
    """A block of `lease` ended well and acknowledged nothing; the message says how many records come again."""


@dataclass(frozen=True, slots=True)
class Answered:
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


class LeasedRecords:
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

    def acknowledge(self, outcomes: DataFrame | str | PathLike[str]) -> Answered:
        """Answer everything that is leased, by what was written: once, and for good.

        `outcomes` is the folder of Parquet files that the block wrote, or a DataFrame that reads what it wrote:
        `topic, partition, offset` as they were leased, `outcome` (accept, release or reject; anything else is what
        `unknown` of `lease` says), and `not_before` where a released record shall wait until a time, else it waits
        for the group's back-off; other columns as it likes. With a column `lease_id` the rows of other leases are
        left alone, so that one folder may be appended to. A record the log has and no row names gets the outcome
        `dropped` of `lease`; an offset the log never had is a gap.

        Raises HandlerError for outcomes that are not read from storage, contradict themselves, name what was not
        leased, are unknown, or lack a record, unless `lease` was told what these mean; LockLost; and what
        `Source.answers` and `State.acknowledge` raise. Nothing has been answered then, but by `State.acknowledge`,
        which answers lease by lease.
        """
        self._keeper.check()
        if self._acknowledged:
            raise HandlerError("these records were acknowledged already: an answer is given once")
        if not self.leases:
            return Answered(0, 0, 0, 0, 0, 0, 0, 0, 0)
        seen = self._seen(self._durable(outcomes))
        answers = self._source.answers(self.leases, seen, self._infos, self._dropped)
        self._acknowledged = True
        now = self._source.state.now()
        answers = {at.lease_id: self._backoff.apply(at, answers[at.lease_id], now) for at in self.leases}
        given = acknowledge_all(
            self._source.state,
            self._keeper,
            [Given(lease, answers[lease.lease_id]) for lease in self.leases],
        )
        # Below the log start nothing can be answered any more; such a lease ends without it.
        release_held(self._source.state, [lease for lease in self.leases if answers[lease.lease_id].lost])
        return Answered(
            leased=self.count,
            accepted=sum(a.accepted for a in given),
            released=sum(a.released for a in given),
            rejected=sum(a.rejected for a in given),
            gaps=sum(a.gaps for a in given),
            exhausted=sum(a.exhausted for a in given),
            dropped=sum(a.dropped for a in answers.values()),
            lost=sum(a.lost.count for a in answers.values()),
            lag=sum(a.lag for a in given),
        )

    def _durable(self, outcomes: DataFrame | str | PathLike[str]) -> DataFrame:
        """The outcomes as they lie in storage, flushed where that is this machine's matter."""
        spark = self._source.spark
        if isinstance(outcomes, DataFrame):
            _refuse_unwritten(outcomes)
            folders = {unquote(file).rpartition("/")[0] for file in outcomes.inputFiles()}
            written = outcomes
        else:
            folder = fspath(outcomes)
            if not Files(spark, folder).exists(folder):
                raise HandlerError(
                    f"there is no folder {folder}: write the outcomes before acknowledging them"
                )
            written = _outcomes_in(spark, folder)
            folders = {folder, *(unquote(file).rpartition("/")[0] for file in written.inputFiles())}
        for folder in sorted(folders):  # which need not be of one file system
            refuse_unshared(spark, self._source.settings, folder)
            Files(spark, folder).flush(folder)
        return written

    def _seen(self, written: DataFrame) -> dict[int, Seen]:
        absent = [name for name in _WRITTEN_AS if name not in written.columns]
        if absent:
            raise HandlerError(
                f"the outcomes lack {', '.join(absent)}: expected topic, partition and offset as they were leased, "
                f"and `outcome`, one of {', '.join(OUTCOMES)}"
            )
        if not isinstance(kind := written.schema["outcome"].dataType, StringType):
            raise HandlerError(
                f"the outcomes' `outcome` is of type {kind.simpleString()}: expected one of {', '.join(OUTCOMES)}"
            )
        kinds = {
            **_WRITTEN_AS,
            **({"not_before": "timestamp_ltz"} if "not_before" in written.columns else {}),
        }
        columns = [fn.col(name).cast(kind).alias(name) for name, kind in kinds.items()]
        ours = [lease.lease_id for lease in self.leases]
        if "lease_id" in written.columns:
            rows = written.select(*columns, fn.col("lease_id").cast("long").alias("lease_id"))
            rows = rows.where(fn.col("lease_id").isin(ours))
        else:
            rows = self._with_lease_ids(written.select(*columns))
        seen = seen_in(with_outcomes(_nameless_apart(rows), self._unknown))
        if strange := seen.pop(_NO_LEASE, None):
            raise HandlerError(
                f"the outcomes have {strange.offsets.count} offsets, such as {strange.offsets.first}, of partitions "
                "that were not leased, or rows without topic, partition or offset: pass them on as they were read"
            )
        return seen

    def _with_lease_ids(self, rows: DataFrame) -> DataFrame:
        """The rows with the lease of their partition: there is one lease for each."""
        at = [lease.share_partition for lease in self.leases]
        owners = pa.table(
            {
                "l_topic": pa.array([sp.topic for sp in at], pa.string()),
                "l_partition": pa.array([sp.partition for sp in at], pa.int32()),
                "lease_id": pa.array([lease.lease_id for lease in self.leases], pa.int64()),
            }
        )
        leased = fn.broadcast(self._source.spark.createDataFrame(owners))
        same = (rows["topic"] == leased["l_topic"]) & (rows["partition"] == leased["l_partition"])
        return rows.join(leased, same, "left").drop("l_topic", "l_partition")


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
        place = settings or Settings.load()
        session = spark or spark_session(place, f"lease of {group}")
        database = stack.enter_context(Database.open(place))
        broker = stack.enter_context(Topics(place))
        State(database).check_cluster(broker.cluster_id())
        require_topics(broker, names)
        configs = GroupConfigs.load(database, group)
        source = Source(
            place,
            state or State(database),
            broker,
            session,
            isolation_level or configs.isolation_level,
            dict(reader_options or {}),
            headers,
            max_scans,
        )
        ending = stack.enter_context(DrainAtEnd(place, source.state, configs))
        member = membership
        if member is None:
            joined = stack.enter_context(Membership(place.service_url, group, names))
            joined.join()
            member = joined
        cancel = stack.enter_context(cancellable(session))
        keeper = stack.enter_context(LeaseKeeper(source.state, member, cancel))
        share_partitions = _in_turn(member, names)
        infos = source.observe(share_partitions)
        budget = Budget(max_records)
        if max_bytes:
            sizes = stack.enter_context(RecordSizes(place, source.isolation_level))
            means = sizes.measure(share_partitions, source.state.describe(group))
            budget = Budget(max_records, max_bytes, means)
        leases = keeper.acquire_within(budget, share_partitions, lock_duration_ms)
        reason = None if leases else why_nothing(source.state, configs, names)
        if reason is not None:
            _log.warning("nothing was leased: %s", reason)
        leased = LeasedRecords(source, keeper, leases, infos, dropped, unknown, Backoff.of(configs), reason)
        ending.told = leased
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
    """What is assigned and of these topics, beginning elsewhere each time and in each member, so that none
    starves.
    """
    assigned = sorted(sp for sp in member.assignment if sp.topic in topics)
    turn = (next(_turns) + zlib.crc32(member.member_id.encode())) % len(assigned) if assigned else 0
    return assigned[turn:] + assigned[:turn]


def _outcomes_in(spark: SparkSession, folder: str) -> DataFrame:
    """What a folder holds, with all columns that any of its files has: an older one may lack `not_before`."""
    try:
        return read_parquet(spark, [folder])
    except Exception as error:
        if "CANNOT_MERGE" not in str(error):
            raise
    # A column was widened from one file to the next.
    return read_parquet(spark, [unquote(file) for file in spark.read.parquet(literal(folder)).inputFiles()])


def _nameless_apart(rows: DataFrame) -> DataFrame:
    """The rows with `_NO_LEASE` for a lease where they do not say which record they are."""
    named = fn.col("lease_id").isNotNull() & fn.col("offset").isNotNull()
    return rows.withColumns(
        {
            "lease_id": fn.when(named, fn.col("lease_id")).otherwise(fn.lit(_NO_LEASE).cast("long")),
            "offset": fn.coalesce(fn.col("offset"), fn.lit(0).cast("long")),
            "outcome": fn.when(named, fn.col("outcome")).otherwise(RELEASE),
        }
    )


def _refuse_unwritten(outcomes: DataFrame) -> None:
    """Refuse outcomes that would be computed anew, or come from memory, and so need not be what was written."""
    leaves: Any = outcomes._jdf.queryExecution().analyzed().collectLeaves()
    written = leaves.size() > 0
    for at in range(leaves.size()):
        kind = _kind_of(leaves.apply(at))
        if kind in ("KafkaRelation", "KafkaTable"):
            raise HandlerError(
                "these outcomes are computed from the topic itself: write them, and acknowledge the folder or "
                "a DataFrame that reads it"
            )
        written = written and kind is not None
    if not written:
        raise HandlerError(
            "these outcomes are in memory only, or a part of them is: write them, and acknowledge the folder or a "
            "DataFrame that reads it"
        )


def _kind_of(leaf: Any) -> str | None:
    """What sort of storage a leaf of a plan reads; None for what is computed or in memory."""
    kind = str(leaf.getClass().getSimpleName())
    if kind == "LogicalRelation":
        return str(leaf.relation().getClass().getSimpleName())
    if kind == "DataSourceV2Relation":
        return str(leaf.table().getClass().getSimpleName())
    return kind if kind == "HiveTableRelation" else None
