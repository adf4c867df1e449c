"""What does a report on a share group show in Dagster?

The numbers that Dagster plots over time (flat keys, one unit each, the same at every materialization), a
table and a picture. The figures are those of ``State.figures``, the picture of lag is drawn from the history in
Postgres; nothing is computed here that SQL already computes.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.dagster import plots
from sharequeue.deadletters.writer import DeadLetterReport
from sharequeue.state.journal import Day
from sharequeue.state.reports import SharePartitionReport
from sharequeue.values import ArchivedRun, DeliveryCount, SharePartitionStatus

if TYPE_CHECKING:
    import pandas as pd

    from sharequeue.spark.report import RunReport

Metadata = dict[str, Any]

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
    "available": "int",
    "acquired": "int",
    "archiving": "int",
    "lost_records": "int",
    "highest_delivery_count": "int",
}
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


def dead_letters(report: DeadLetterReport, written: Sequence[ArchivedRun]) -> Metadata:
    """What was written since the last report, by whomever; what this drain did of it; what is held, and why."""
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
        "drain_seconds": round(report.seconds, 3),
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


def spso_and_lag(
    statuses: Sequence[SharePartitionStatus], history: Sequence[SharePartitionReport], days: Sequence[Day]
) -> Metadata:
    """Lag and what is in flight in records, SPSO per partition in offsets, as a table; lag over time, and what the
    days that are over have brought."""
    return {
        **figures(statuses),
        "share_partitions": table(statuses, _STATUS_COLUMNS),
        "by_day": table(days, _DAY_COLUMNS),
        "lag_over_time": plots.lines(_lag(history), title="Lag per partition", unit="records"),
    }


def figures(statuses: Sequence[SharePartitionStatus]) -> dict[str, int]:
    """The numbers of the report on SPSO and lag, which Dagster plots: the same ones from a run and from a sensor."""
    return {
        "lag_records": sum(s.lag for s in statuses),
        "in_flight_records": sum(s.in_flight for s in statuses),
        "available_records": sum(s.available for s in statuses),
        "acquired_records": sum(s.acquired for s in statuses),
        "archiving_records": sum(s.archiving for s in statuses),
        "lost_records": sum(s.lost_records for s in statuses),
        **{f"spso_{s.topic}_{s.partition}_offset": s.spso for s in statuses},
    }


def delivery_counts(counts: Sequence[DeliveryCount]) -> Metadata:
    """Records by outcome, how often they were delivered, as a table and as a histogram."""
    ended = {outcome: sum(c.records for c in counts if c.outcome == outcome) for outcome in OUTCOMES}
    deliveries = sum(c.records * c.delivery_count for c in counts)
    return {
        **{f"{outcome}_records": records for outcome, records in ended.items()},
        "highest_delivery_count": max((c.delivery_count for c in counts), default=0),
        "deliveries_per_record": round(deliveries / sum(ended.values()), 4) if counts else 0.0,
        "delivery_counts": table(counts, _COUNT_COLUMNS),
        "histogram": plots.bars(
            histogram(counts), title="Deliveries until a record ended", across="delivery count"
        ),
    }


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


def _lag(history: Sequence[SharePartitionReport]) -> dict[str, list[tuple[datetime, int]]]:
    series: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for report in history:
        series[f"{report.topic}-{report.partition}"].append((report.reported_at, report.lag))
    return series
