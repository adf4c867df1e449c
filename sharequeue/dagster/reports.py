"""The metadata of a share group's reports in Dagster.

First a link to the page and the numbers that matter most, then pictures that are small enough to be shown in place,
then the other numbers, and tables last: Dagster keeps this order. It plots numbers over time: flat keys, one
unit each, the same at every materialization; what is not known is null. Figures and history are read from Postgres;
nothing is computed here that SQL already computes. Their keys are named in `sharequeue.domain.figures`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.dagster.tables import figure_columns, table, table_of
from sharequeue.deadletters.letters import trace_command
from sharequeue.deadletters.writer import DeadLetterReport
from sharequeue.domain.figures import GroupFigures, SharePartitionStatus, figures_of
from sharequeue.domain.names import listed
from sharequeue.domain.values import ArchivedRun, DeliveryCount
from sharequeue.reports import inline_pictures
from sharequeue.reports.drawing import CAUSE_COLOURS
from sharequeue.reports.parts import causes_by_day
from sharequeue.reports.read import CausesOfDay, GroupReport
from sharequeue.reports.remarks import lines_of
from sharequeue.state.journal import Day, DayOutcome

if TYPE_CHECKING:
    from sharequeue.domain.results.runs import RunReport

Metadata = dict[str, Any]

CAUSES = ("rejected", "exhausted")
OUTCOMES = ("accepted", "rejected", "exhausted", "gap")
HEADLINES = 7
"""Numbers shown before the pictures; the others follow them."""
MOST_ROWS = 200
"""The number of share-partitions in a table, those with the most lag; the page and the views have more."""
MOST_PARTITIONS = 50
"""Up to this number of share-partitions, each SPSO is a number of its own, which Dagster plots."""

_ROUND_COLUMNS = dict.fromkeys(
    ("number", "leased", "accepted", "released", "rejected", "exhausted", "gaps", "lost", "lag"), "int"
)
_PARTITION_COLUMNS = {"topic": "string", "partition": "int"}
STUCK_COLUMNS = {
    "lease_id": "int",
    **_PARTITION_COLUMNS,
    "member_id": "string",
    "records": "int",
    "held_seconds": "float",
    "stuck_reason": "string",
}
_DAY_COLUMNS = {
    "day": "string",
    **_PARTITION_COLUMNS,
    "leases": "int",
    "accepted_first": "int",
    "lost_records": "int",
    "highest_delivery_count": "int",
    "spso": "int",
    "speo": "int",
}
_COUNT_COLUMNS = {**_PARTITION_COLUMNS, "outcome": "string", "delivery_count": "int", "records": "int"}


def run(report: "RunReport", statuses: Sequence[SharePartitionStatus]) -> Metadata:
    """Report the rounds of one run: records, seconds by stage, and one row per round.

    `statuses` are those of the group after the run. Records that wait for their dead letter are not in the lag of
    this report: the run has done its work on them, and the next asset writes their letters.
    """
    by_stage = {
        f"{stage.replace(' ', '_')}_seconds": round(s, 3) for stage, s in report.stage_seconds.items()
    }
    rounds = ((*(getattr(r, name) for name in _ROUND_COLUMNS), round(r.seconds, 3)) for r in report.rounds)
    return {
        "rounds": len(report.rounds),
        "leased_records": report.leased,
        "accepted_records": report.accepted,
        "released_records": report.released,
        "rejected_records": report.rejected,
        "exhausted_records": report.exhausted,
        "gap_records": report.gaps,
        "lost_records": report.lost,
        "lag_records": sum(max(0, status.lag - status.archiving) for status in statuses),
        "archiving_records": sum(status.archiving for status in statuses),
        "run_seconds": round(report.seconds, 3),
        "start_seconds": round(report.start_seconds, 3),
        "rate_records_per_second": round(report.rate, 1),
        **by_stage,
        "trace": trace_command("TOPIC", "PARTITION", "OFFSET", report.group),
        "by_round": table({**_ROUND_COLUMNS, "seconds": "float"}, rounds),
    }


def dead_letters(
    report: DeadLetterReport,
    archived: Sequence[ArchivedRun],
    new: Sequence[ArchivedRun],
    history: Sequence[CausesOfDay] = (),
) -> Metadata:
    """Report all letters of the group (`archived`), those written since the last report, by any writer (`new`), and
    what this asset did.

    Also what is held, and why, and the causes of the last days.
    """
    by_cause: Counter[tuple[str, str, int]] = Counter()
    for run in new:
        outcome = "dropped" if run.dropped else run.cause
        by_cause[run.share_partition.topic, outcome, run.delivery_count] += run.offsets.count
    by_outcome = Counter[str]()
    for (_, outcome, _), records in by_cause.items():
        by_outcome[outcome] += records
    days = [counted for _, counted in sorted(causes_by_day(history).items())]
    return {
        "dead_letter_topic": report.topic or "none",
        "dagster/row_count": sum(run.offsets.count for run in archived if not run.dropped),
        "new_records": by_outcome.total() - by_outcome["dropped"],
        "written_records": report.written,
        "resumed_records": report.resumed,
        "dropped_records": by_outcome["dropped"],
        "held_records": sum(h.records for h in report.held),
        **{f"{cause}_records": by_outcome[cause] for cause in CAUSES},
        "write_seconds": round(report.seconds, 3),
        "causes_over_time": dg.MetadataValue.md(
            inline_pictures.columns(days, CAUSE_COLOURS, unit="by day, in the last 30 days")
        ),
        "by_cause": table(
            {"topic": "string", "cause": "string", "delivery_count": "int", "records": "int"},
            ((*key, records) for key, records in sorted(by_cause.items())),
        ),
        "held": table(
            {"share_partition": "string", "records": "int", "reason": "string"},
            ((str(h.share_partition), h.records, h.reason) for h in report.held),
        ),
    }


def spso_and_lag(report: GroupReport, days: Sequence[Day]) -> Metadata:
    """Report the group's position in numbers, its history in pictures, and the rest in tables.

    The tables have its share-partitions, stuck leases, and what the days that are over have brought.
    """
    lag = [(moment.at, float(moment.lag)) for moment in report.moments]
    widest = max(report.windows, key=lambda window: window.speo - window.spso, default=None)
    most_lag = sorted(report.statuses, key=lambda status: -status.lag)[:MOST_ROWS]
    numbers = figures(report.statuses, report.figures)
    return {
        **dict(list(numbers.items())[:HEADLINES]),
        "lag_over_time": dg.MetadataValue.md(inline_pictures.line(lag, unit="records in the last 24 hours")),
        "throughput_over_time": dg.MetadataValue.md(
            inline_pictures.line(report.rates(), unit="records a second in the last 24 hours")
        ),
        "in_flight_window": dg.MetadataValue.md(inline_pictures.strip(widest)),
        **numbers,
        "dagster/row_count": len(report.statuses),
        "remarks": table(
            {"about": "string", "remark": "string"},
            ((listed(line.about), line.remark) for line in lines_of(report.remarks)[:MOST_ROWS]),
        ),
        "share_partitions": table_of(
            {**_PARTITION_COLUMNS, **figure_columns(SharePartitionStatus)}, most_lag
        ),
        "stuck": table_of(STUCK_COLUMNS, report.stuck),
        "by_day": table_of(_DAY_COLUMNS, days),
    }


def day(days: Sequence[Day], outcomes: Sequence[DayOutcome]) -> Metadata:
    """Report one day: new records, outcomes, and one row for each share-partition."""
    ended = _by_outcome(outcomes)
    ended["accepted"] += sum(each.accepted_first for each in days)
    return {
        "entered_records": sum(each.entered for each in days),
        **{f"{outcome}_records": records for outcome, records in ended.items()},
        "lost_records": sum(each.lost_records for each in days),
        "leases": sum(each.leases for each in days),
        "highest_delivery_count": max((each.highest_delivery_count for each in days), default=0),
        "dagster/partition_row_count": len(days),
        "share_partitions": table_of(_DAY_COLUMNS, days),
        "records_by_delivery_count": table_of(_COUNT_COLUMNS, outcomes),
    }


def figures(statuses: Sequence[SharePartitionStatus], group: GroupFigures) -> dict[str, int | float | None]:
    """Return the figures on SPSO and lag, which Dagster plots: the same ones from a run and from a sensor."""
    values = {each.dagster: getattr(group, each.name) for each in figures_of(GroupFigures) if each.dagster}
    starts = {f"spso_{s.topic}_{s.partition}_offset": s.spso for s in statuses}
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()} | (
        starts if len(statuses) <= MOST_PARTITIONS else {}
    )


def delivery_counts(counts: Sequence[DeliveryCount]) -> Metadata:
    """Report records by outcome and delivery count, as a table and as a histogram."""
    ended, over_outcomes = _by_outcome(counts), Counter[int]()
    for count in counts:
        over_outcomes[count.delivery_count] += count.records
    deliveries = sum(c.records * c.delivery_count for c in counts)
    return {
        **{f"{outcome}_records": records for outcome, records in ended.items()},
        "highest_delivery_count": max((c.delivery_count for c in counts), default=0),
        "dagster/row_count": len(counts),
        "deliveries_per_record": round(deliveries / sum(ended.values()), 4) if counts else 0.0,
        "histogram": dg.MetadataValue.md(
            inline_pictures.bars(
                over_outcomes, unit="deliveries (records at each delivery count, logarithmic)"
            )
        ),
        "delivery_counts": table_of(_COUNT_COLUMNS, counts),
    }


def _by_outcome(counts: Sequence[DeliveryCount] | Sequence[DayOutcome]) -> dict[str, int]:
    return {outcome: sum(each.records for each in counts if each.outcome == outcome) for outcome in OUTCOMES}
