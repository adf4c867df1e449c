"""What does a report on a share group show in Dagster?

First a link to the page and the numbers that matter most, then pictures that are short enough to be shown where they
stand, then the other numbers, and tables last: Dagster keeps this order. It plots numbers over time: flat keys, one
unit each, the same at every materialization; what is not known is null. Figures and history are read from Postgres;
nothing is computed here that SQL already computes.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.deadletters.writer import DeadLetterReport
from sharequeue.reporting import small
from sharequeue.reporting.drawing import CAUSE_COLOURS
from sharequeue.state.group_report import CausesOfDay, GroupFigures, GroupReport
from sharequeue.state.journal import Day, DayOutcome
from sharequeue.values import ArchivedRun, DeliveryCount, SharePartitionStatus

if TYPE_CHECKING:
    import pandas as pd

    from sharequeue.spark.report import RunReport

Metadata = dict[str, Any]

CAUSES = ("rejected", "exceeded")
OUTCOMES = ("accepted", "rejected", "exceeded", "gap")

_ROUND_COLUMNS = ("number", "leased", "accepted", "released", "rejected", "exhausted", "gaps", "lost", "lag")
_STATUS_COLUMNS = {
    "topic": "string",
    "partition": "int",
    "spso": "int",
    "speo": "int",
    "log_start": "int",
    "log_end": "int",
    "lag": "int",
    "in_flight": "int",
    "delivery_complete_count": "int",
    "available": "int",
    "acquired": "int",
    "archiving": "int",
    "lost_records": "int",
    "highest_delivery_count": "int",
}
_STUCK_COLUMNS = {
    "lease_id": "int",
    "topic": "string",
    "partition": "int",
    "member_id": "string",
    "records": "int",
    "held_seconds": "float",
    "reason": "string",
}
HEADLINES = 6
"""Numbers that stand before the pictures, the others after them."""
MOST_ROWS = 200
"""Of a table with a row for each share-partition, those that lag most; the page and the views have more."""
MOST_PARTITIONS = 50
"""SPSO is a number of its own, for Dagster to plot, where there are at most so many share-partitions."""
_DAY_COLUMNS = {
    "day": "string",
    "topic": "string",
    "partition": "int",
    "leases": "int",
    "accepted_first": "int",
    "lost_records": "int",
    "highest_delivery_count": "int",
    "spso": "int",
    "speo": "int",
}
_COUNT_COLUMNS = {
    "topic": "string",
    "partition": "int",
    "outcome": "string",
    "delivery_count": "int",
    "records": "int",
}


def run(report: "RunReport") -> Metadata:
    """What the rounds of one run did: records, seconds by stage, and a line per round."""
    by_stage = {
        f"{stage.replace(' ', '_')}_seconds": round(s, 3) for stage, s in report.stage_seconds.items()
    }
    rounds = [
        dg.TableRecord({name: getattr(r, name) for name in _ROUND_COLUMNS} | {"seconds": round(r.seconds, 3)})
        for r in report.rounds
    ]
    columns = [*(dg.TableColumn(name, "int") for name in _ROUND_COLUMNS), dg.TableColumn("seconds", "float")]
    return {
        "rounds": len(report.rounds),
        "leased_records": report.leased,
        "accepted_records": report.accepted,
        "released_records": report.released,
        "rejected_records": report.rejected,
        "exhausted_records": report.exhausted,
        "gap_records": report.gaps,
        "lost_records": report.lost,
        "lag_records": report.lag,
        "run_seconds": round(report.seconds, 3),
        "rate_records_per_second": round(report.rate, 1),
        **by_stage,
        "by_round": dg.MetadataValue.table(records=rounds, schema=dg.TableSchema(columns=columns)),
    }


def dead_letters(
    report: DeadLetterReport, written: Sequence[ArchivedRun], history: Sequence[CausesOfDay] = ()
) -> Metadata:
    """What was written since the last report, by whomever; what this drain did of it; what is held, and why; and the
    causes of the last days."""
    held = [
        dg.TableRecord({"share_partition": str(h.share_partition), "records": h.records, "reason": h.reason})
        for h in report.held
    ]
    columns = [
        dg.TableColumn("share_partition", "string"),
        dg.TableColumn("records", "int"),
        dg.TableColumn("reason", "string"),
    ]
    by_cause: Counter[tuple[str, str, int]] = Counter()
    for run in written:
        outcome = "dropped" if run.dropped else run.cause
        by_cause[run.share_partition.topic, outcome, run.delivery_count] += run.offsets.count
    causes = [
        dg.TableRecord({"topic": topic, "cause": cause, "delivery_count": count, "records": records})
        for (topic, cause, count), records in sorted(by_cause.items())
    ]
    return {
        "dead_letter_topic": report.topic or "none",
        "new_records": sum(run.offsets.count for run in written if not run.dropped),
        "written_records": report.written,
        "resumed_records": report.resumed,
        "dropped_records": sum(run.offsets.count for run in written if run.dropped),
        "held_records": sum(h.records for h in report.held),
        **{
            f"{cause}_records": sum(
                run.offsets.count for run in written if run.cause == cause and not run.dropped
            )
            for cause in CAUSES
        },
        "drain_seconds": round(report.seconds, 3),
        "causes_over_time": dg.MetadataValue.md(
            small.columns(_by_day(history), CAUSE_COLOURS, unit="by day, in the last 30 days")
        ),
        "by_cause": dg.MetadataValue.table(
            records=causes,
            schema=dg.TableSchema(
                columns=[
                    dg.TableColumn("topic", "string"),
                    dg.TableColumn("cause", "string"),
                    dg.TableColumn("delivery_count", "int"),
                    dg.TableColumn("records", "int"),
                ]
            ),
        ),
        "held": dg.MetadataValue.table(records=held, schema=dg.TableSchema(columns=columns)),
    }


def spso_and_lag(report: GroupReport, days: Sequence[Day]) -> Metadata:
    """Where the group stands in numbers; how it came there in pictures; its share-partitions, stuck leases, and what
    the days that are over have brought in tables."""
    lag = [(moment.at, float(moment.lag)) for moment in report.moments]
    widest = max(report.windows, key=lambda window: window.speo - window.spso, default=None)
    most_lag = sorted(report.statuses, key=lambda status: -status.lag)[:MOST_ROWS]
    numbers = figures(report.statuses, report.figures)
    return {
        **dict(list(numbers.items())[:HEADLINES]),
        "lag_over_time": dg.MetadataValue.md(small.line(lag, unit="records in the last 24 hours")),
        "throughput_over_time": dg.MetadataValue.md(
            small.line(report.rates(), unit="records a second in the last 24 hours")
        ),
        "in_flight_window": dg.MetadataValue.md(small.strip(widest)),
        **numbers,
        "share_partitions": table(most_lag, _STATUS_COLUMNS),
        "stuck": table(report.stuck, _STUCK_COLUMNS),
        "by_day": table(days, _DAY_COLUMNS),
    }


def day(days: Sequence[Day], outcomes: Sequence[DayOutcome]) -> Metadata:
    """What one day brought: records that entered, how records ended, and a line for each share-partition."""
    ended = _by_outcome(outcomes)
    ended["accepted"] += sum(each.accepted_first for each in days)
    return {
        "entered_records": sum(each.entered for each in days),
        **{f"{outcome}_records": records for outcome, records in ended.items()},
        "lost_records": sum(each.lost_records for each in days),
        "leases": sum(each.leases for each in days),
        "highest_delivery_count": max((each.highest_delivery_count for each in days), default=0),
        "share_partitions": table(days, _DAY_COLUMNS),
        "records_by_delivery_count": table(outcomes, _COUNT_COLUMNS),
    }


def figures(statuses: Sequence[SharePartitionStatus], group: GroupFigures) -> dict[str, int | float | None]:
    """The numbers of the report on SPSO and lag, which Dagster plots: the same ones from a run and from a sensor."""
    return {
        "lag_records": group.lag,
        "in_flight_records": group.in_flight,
        "throughput_records_per_second": _rounded(group.throughput),
        "time_to_drain_seconds": _rounded(group.time_to_drain_seconds),
        "oldest_age_seconds": _rounded(group.oldest_age_seconds),
        "stuck_leases": group.stuck_leases,
        "available_records": group.available,
        "acquired_records": group.acquired,
        "archiving_records": group.archiving,
        "delivery_complete_records": group.delivery_complete_count,
        "lost_records": group.lost_records,
        **(
            {f"spso_{s.topic}_{s.partition}_offset": s.spso for s in statuses}
            if len(statuses) <= MOST_PARTITIONS
            else {}
        ),
    }


def delivery_counts(counts: Sequence[DeliveryCount]) -> Metadata:
    """Records by outcome, how often they were delivered, as a table and as a histogram."""
    ended = _by_outcome(counts)
    deliveries = sum(c.records * c.delivery_count for c in counts)
    return {
        **{f"{outcome}_records": records for outcome, records in ended.items()},
        "highest_delivery_count": max((c.delivery_count for c in counts), default=0),
        "deliveries_per_record": round(deliveries / sum(ended.values()), 4) if counts else 0.0,
        "histogram": dg.MetadataValue.md(
            small.bars(
                _over_outcomes(counts), unit="deliveries (records at each delivery count, logarithmic)"
            )
        ),
        "delivery_counts": table(counts, _COUNT_COLUMNS),
    }


def _by_outcome(counts: Sequence[DeliveryCount] | Sequence[DayOutcome]) -> dict[str, int]:
    return {outcome: sum(each.records for each in counts if each.outcome == outcome) for outcome in OUTCOMES}


def histogram(counts: Sequence[DeliveryCount]) -> dict[str, dict[int, int]]:
    """Records per outcome and delivery count, over all partitions."""
    summed: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for count in counts:
        summed[count.outcome][count.delivery_count] += count.records
    return {outcome: dict(heights) for outcome, heights in summed.items()}


def table(rows: Sequence[object], columns: Mapping[str, str]) -> dg.TableMetadataValue:
    """The named attributes of each row; ``columns`` has their types under Dagster's names."""
    return dg.MetadataValue.table(
        records=[dg.TableRecord({name: _cell(getattr(row, name)) for name in columns}) for row in rows],
        schema=dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()]),
    )


def preview(frame: "pd.DataFrame", rows: int) -> dg.TableMetadataValue:
    """The first rows of a small table."""
    kinds = {"i": "int", "u": "int", "f": "float", "b": "bool"}
    columns = {str(name): kinds.get(kind.kind, "string") for name, kind in frame.dtypes.items()}
    return dg.MetadataValue.table(
        records=[
            dg.TableRecord(
                {name: _plain(value, columns[name]) for name, value in zip(columns, row, strict=True)}
            )
            for row in frame.head(rows).itertuples(index=False)
        ],
        schema=dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()]),
    )


def _plain(value: Any, kind: str) -> str | int | float | bool | None:
    """A cell as JSON has it; numpy's own numbers are none."""
    if value is None or value != value:
        return None
    if kind == "int":
        return int(value)
    if kind == "float":
        return float(value)
    return bool(value) if kind == "bool" else str(value)


def _cell(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 3)


def _over_outcomes(counts: Sequence[DeliveryCount]) -> dict[int, int]:
    summed: Counter[int] = Counter()
    for count in counts:
        summed[count.delivery_count] += count.records
    return dict(summed)


def _by_day(causes: Sequence[CausesOfDay]) -> list[dict[str, int]]:
    """A column for each day that had dead letters, those that were dropped apart."""
    days: dict[date, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for each in causes:
        days[each.day][each.cause] += each.written_records
        days[each.day]["dropped"] += each.dropped_records
    return [dict(days[day]) for day in sorted(days)]
