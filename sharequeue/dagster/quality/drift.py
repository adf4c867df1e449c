"""Compare this week's dead letters with last week's, by number and cause.

The counts are of letters that Postgres has recorded as written, or dropped, in the last seven days and in the seven
before. The check passes for groups younger than two weeks, and for few letters.
"""

from collections import Counter
from dataclasses import dataclass

import dagster as dg
import sqlalchemy as sa

from sharequeue.dagster.share_group import Drift
from sharequeue.dagster.tables import table
from sharequeue.database import Database


@dataclass(frozen=True, slots=True)
class Drifted:
    """Letters by cause, of this week and of last week, and the differences."""

    this_week: Counter[str]
    last_week: Counter[str]
    changes: tuple[str, ...]
    remark: str

    def result(self, asset: dg.AssetKey, name: str) -> dg.AssetCheckResult:
        """Return the check's result: at worst a warning."""
        causes = sorted({*self.this_week, *self.last_week})
        columns = {"cause": "string", "last_week": "int", "this_week": "int"}
        return dg.AssetCheckResult(
            passed=not self.changes,
            asset_key=asset,
            check_name=name,
            severity=dg.AssetCheckSeverity.WARN,
            description="; ".join(self.changes) or self.remark,
            metadata={
                "this_week_records": self.this_week.total(),
                "last_week_records": self.last_week.total(),
                "by_cause": table(columns, ((c, self.last_week[c], self.this_week[c]) for c in causes)),
            },
        )


def drift_of(database: Database, group_id: str, bounds: Drift) -> Drifted:
    """Compare the two weeks of a group, by the database's clock."""
    rows = database.rows(
        sa.text(
            "select cause, written_at >= sharequeue.clock() - interval '7 days' as recent,"
            " sum(sharequeue.records(offsets)) as records from sharequeue.dead_letter_batch_runs"
            " where group_id = :group_id and written_at >= sharequeue.clock() - interval '14 days' group by 1, 2"
        ),
        group_id=group_id,
    )
    weeks: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for row in rows:
        weeks[row["recent"]][row["cause"]] += int(row["records"])
    return compare(weeks[True], weeks[False], bounds, old_enough=_is_old(database, group_id))


def _is_old(database: Database, group_id: str) -> bool:
    """Return whether the group existed in the week before: something was written or reported earlier than that."""
    rows = database.rows(
        sa.text(
            "select exists (select from sharequeue.dead_letter_batch_runs w where w.group_id = :group_id"
            " and w.written_at < sharequeue.clock() - interval '7 days') or exists (select from"
            " sharequeue.share_partition_reports r where r.group_id = :group_id"
            " and r.reported_at < sharequeue.clock() - interval '14 days') as old"
        ),
        group_id=group_id,
    )
    return bool(rows[0]["old"])


def compare(this: Counter[str], last: Counter[str], bounds: Drift, *, old_enough: bool) -> Drifted:
    """Compare the causes of this week with those of last week; differences within the bounds are ignored."""
    now, before, least = this.total(), last.total(), bounds.min_records
    if not old_enough:
        return Drifted(this, last, (), "there is no week before this one to compare with")
    if max(now, before) < least:
        return Drifted(this, last, (), f"fewer than {least} letters in each of the two weeks")
    changes = []
    if now >= bounds.factor * max(before, 1) or before >= bounds.factor * max(now, 1):
        changes.append(f"{now:,} dead letters in the last seven days, {before:,} in the seven before")
    if min(now, before) >= least:
        for cause in sorted({*this, *last}):
            shares = last[cause] / before, this[cause] / now
            if abs(shares[1] - shares[0]) >= bounds.share:
                changes.append(f"{cause}: {shares[1]:.0%} of all, {shares[0]:.0%} in the week before")
    return Drifted(this, last, tuple(changes), "same as last week")
