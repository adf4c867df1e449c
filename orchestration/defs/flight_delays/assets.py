"""What does a run of ``flight_delays`` make, in which order?

Accepted flights (lease → read → handle → write → acknowledge, round by round, as a member of the group),
their summary, the sweep, the dead letters, and the two reports. The order is that of the dependencies, from
top to bottom. What a round does is ``sharequeue.spark.run``'s matter.
"""

import dagster as dg
from pydantic import Field

from orchestration.defs.flight_delays.group import CLIENT_ID_PREFIX, GROUP, NAME, TAGS, TOPIC, configure
from sharequeue.dagster import reports
from sharequeue.dagster.resources import SettingsResource, SparkResource, StateResource
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.membership import Membership
from sharequeue.kafka.topics import Topics
from sharequeue.state.journal import Journal

HISTORY_REPORTS = 200
REPORTED_DAYS = 200
"""Rows, one a share-partition and day: seven weeks of four partitions."""

_SUMMARY_COLUMNS = {
    "carrier": "string",
    "day": "string",
    "flights": "int",
    "delayed_flights": "int",
    "mean_arrival_delay_minutes": "float",
}


class Bounds(dg.Config):
    """How much one run does at most; what is left is for the next one."""

    max_rounds: int = Field(default=5, ge=1, description="Rounds of lease, read, write and acknowledge.")
    max_records: int = Field(default=10_000_000, ge=1, description="Records leased in one round.")
    max_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Bytes leased in one round, 0 without a bound; if not given, as the group's configs say.",
    )


@dg.asset(group_name=NAME, kinds={"kafka", "spark", "parquet"}, tags=TAGS)
def accepted_flights(
    context: dg.AssetExecutionContext,
    config: Bounds,
    settings: SettingsResource,
    queue: StateResource,
    spark: SparkResource,
) -> dg.MaterializeResult[None]:
    """Flights that arrived, as Parquet by lease. A lease's files count once its acknowledgement has
    committed.
    """
    from pipelines.flights.pipeline import flight_delays
    from sharequeue.spark.output.folders import sink_root
    from sharequeue.spark.run import run_rounds

    loaded = settings.load()
    configure(queue.database)
    member = Membership(loaded.service_url, GROUP, [TOPIC], client_id=CLIENT_ID_PREFIX + context.run_id)
    with member, Topics(loaded) as topics:
        session = spark.session(f"{NAME} {context.run_id[:8]}")
        member.join(progress=context.log.info)
        assigned = ", ".join(str(share_partition) for share_partition in member.assignment)
        context.log.info(f"member {member.member_id} works on {assigned or 'nothing yet'}")
        report = run_rounds(
            loaded,
            flight_delays,
            membership=member,
            state=queue.state,
            topics=topics,
            spark=session,
            max_rounds=config.max_rounds,
            max_records=config.max_records,
            max_bytes=config.max_bytes,
            progress=lambda progress: context.log.info(str(progress)),
        )
        if report.remark:
            context.log.info(f"nothing more to lease: {report.remark}")
        if report.dead_letters is not None and report.dead_letters.warning is not None:
            context.log.warning(str(report.dead_letters.warning))
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": sum(
                row.records for row in queue.state.outputs.counted(GROUP, flight_delays.sink)
            ),
            "path": dg.MetadataValue.path(sink_root(loaded, flight_delays.sink)),
            "member": member.member_id,
            **reports.run(report),
        }
    )


@dg.asset(group_name=NAME, kinds={"spark", "parquet"}, tags=TAGS, deps=[accepted_flights])
def delay_summary(
    settings: SettingsResource, queue: StateResource, spark: SparkResource
) -> dg.MaterializeResult[None]:
    """Flights, delayed flights and arrival delay of each carrier and day, merged from the leases that count."""
    from pipelines.flights.pipeline import DELAYS, flight_delays, merged_delays
    from sharequeue.dagster.files import replace_parquet
    from sharequeue.spark.output.manifest import read_manifest, read_output

    sink = flight_delays.summary_sink(DELAYS)
    if not read_manifest(queue.state, GROUP, sink):
        return dg.MaterializeResult(metadata={"dagster/row_count": 0, "flights_records": 0})
    partials = read_output(spark.session(NAME), queue.state, GROUP, sink)
    summary = merged_delays(partials).toPandas()
    path = replace_parquet(summary, settings.load().local_output / "delay_summary.parquet")
    worst = summary.nlargest(10, "mean_arrival_delay_minutes").astype({"day": "str"})
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(summary),
            "flights_records": int(summary["flights"].sum()),
            "delayed_flights_records": int(summary["delayed_flights"].sum()),
            "path": dg.MetadataValue.path(path),
            "worst_days": reports.table(list(worst.itertuples()), _SUMMARY_COLUMNS),
        }
    )


@dg.asset(group_name=NAME, kinds={"postgres"}, tags=TAGS, deps=[delay_summary])
def swept_locks(
    context: dg.AssetExecutionContext, settings: SettingsResource, queue: StateResource, spark: SparkResource
) -> dg.MaterializeResult[None]:
    """Locks that had lapsed, settled; and the files of leases that ended without an acknowledgement, removed."""
    from pipelines.flights.pipeline import flight_delays
    from sharequeue.spark.sweeping import sweep_outputs

    swept = queue.state.sweep()
    orphans = sweep_outputs(spark.session(NAME), settings.load(), queue.state, flight_delays)
    for path in orphans:
        context.log.info(f"removed {path}: its lease ended without an acknowledgement")
    return dg.MaterializeResult(
        metadata={
            "swept_leases": swept.leases,
            "swept_records": swept.records,
            "removed_folders": len(orphans),
        }
    )


@dg.asset(group_name=NAME, kinds={"kafka"}, tags=TAGS, deps=[swept_locks])
def dead_letters(
    context: dg.AssetExecutionContext, settings: SettingsResource, queue: StateResource
) -> dg.MaterializeResult[None]:
    """Records that were rejected, or delivered too often, written to the dead-letter topic, each exactly
    once.
    """
    configs = GroupConfigs.load(queue.database, GROUP)
    writer = DeadLetterWriter(settings.load(), queue.state, GROUP, configs)
    report = writer.drain(progress=context.log.info)
    for held in report.held:
        context.log.warning(
            f"{held.records:,} dead letters of {held.share_partition} are held: {held.reason}"
        )
    return dg.MaterializeResult(metadata=reports.dead_letters(report))


@dg.asset(group_name=NAME, kinds={"postgres"}, tags=TAGS, deps=[dead_letters])
def spso_and_lag(queue: StateResource) -> dg.MaterializeResult[None]:
    """SPSO, lag and what is in flight, per share-partition; recorded in Postgres at every run."""
    queue.reports.record(GROUP)
    history = queue.reports.history(GROUP, HISTORY_REPORTS)
    days = Journal(queue.database).days(GROUP)[-REPORTED_DAYS:]
    return dg.MaterializeResult(
        metadata=reports.spso_and_lag(queue.state.figures.describe(GROUP), history, days)
    )


@dg.asset(group_name=NAME, kinds={"postgres"}, tags=TAGS, deps=[spso_and_lag])
def delivery_counts(queue: StateResource) -> dg.MaterializeResult[None]:
    """How many records ended how, after how many deliveries, since the group began."""
    return dg.MaterializeResult(metadata=reports.delivery_counts(queue.state.figures.delivery_counts(GROUP)))
