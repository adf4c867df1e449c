"""Compare this week's dead letters with last week's, by number and cause.

The counts are of letters that Postgres has recorded as written, or dropped, in the last seven days and in the seven
before. The check passes for groups younger than two weeks, and for few letters.
"""

from collections import Counter

import dagster as dg
import sqlalchemy as sa

from sharequeue.dagster.share_group import Drift
from sharequeue.dagster.tables import table
from sharequeue.database import Database

_WEEKS = sa.text(
    "select cause, written_at >= sharequeue.clock() - interval '7 days' as recent,"
    " sum(sharequeue.records(offsets)) as records from sharequeue.dead_letter_batch_runs"
    " where group_id = :group_id and written_at >= sharequeue.clock() - interval '14 days' group by 1, 2"
)
# Whether the group existed in the week before: something was written or reported earlier than that.
_OLD = sa.text(
    "select exists (select from sharequeue.dead_letter_batch_runs w where w.group_id = :group_id"
    " and w.written_at < sharequeue.clock() - interval '7 days') or exists (select from"
    " sharequeue.share_partition_reports r where r.group_id = :group_id"
    " and r.reported_at < sharequeue.clock() - interval '14 days') as old"
)


def drift_result(
    database: Database, group_id: str, bounds: Drift, asset: dg.AssetKey, name: str
) -> dg.AssetCheckResult:
    """Compare the two weeks of a group, by the database's clock; at worst the check is a warning."""
    weeks: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for row in database.rows(_WEEKS, group_id=group_id):
        weeks[row["recent"]][row["cause"]] += int(row["records"])
    this, last = weeks[True], weeks[False]
    if database.rows(_OLD, group_id=group_id)[0]["old"]:
        changes, remark = changes_of(this, last, bounds), "same as last week, or too few to compare"
    else:
        changes, remark = [], "there is no week before this one to compare with"
    causes = sorted({*this, *last})
    columns = {"cause": "string", "last_week": "int", "this_week": "int"}
    return dg.AssetCheckResult(
        passed=not changes,
        asset_key=asset,
        check_name=name,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(changes) or remark,
        metadata={
            "this_week_records": this.total(),
            "last_week_records": last.total(),
            "by_cause": table(columns, ((cause, last[cause], this[cause]) for cause in causes)),
        },
    )


def changes_of(this: Counter[str], last: Counter[str], bounds: Drift) -> list[str]:
    """Compare the causes of this week with those of last week; differences within the bounds are ignored."""
    now, before, least = this.total(), last.total(), bounds.min_records
    changes = []
    if max(now, before) >= least and max(now, before) >= bounds.factor * max(min(now, before), 1):
        changes.append(f"{now:,} dead letters in the last seven days, {before:,} in the seven before")
    if min(now, before) >= least:
        for cause in sorted({*this, *last}):
            shares = last[cause] / before, this[cause] / now
            if abs(shares[1] - shares[0]) >= bounds.share:
                changes.append(f"{cause}: {shares[1]:.0%} of all, {shares[0]:.0%} in the week before")
    return changes
