"""Are this week's dead letters like last week's: as many, and for the same causes?

From what Postgres has as written, or dropped, in the last seven days and in the seven before. A group that is younger
than two weeks has nothing to be held against, and few letters say nothing.
"""

from collections import Counter
from dataclasses import dataclass

import dagster as dg
import sqlalchemy as sa

from sharequeue.dagster.share_group import Drift
from sharequeue.database import Database


@dataclass(frozen=True, slots=True)
class Drifted:
    """Letters by cause, of this week and of last week, and what is other than it was."""

    this_week: Counter[str]
    last_week: Counter[str]
    changes: tuple[str, ...]
    remark: str

    def result(self, asset: dg.AssetKey, name: str) -> dg.AssetCheckResult:
        """The check's result: a warning at most."""
        causes = sorted({*self.this_week, *self.last_week})
        rows = [
            dg.TableRecord({"cause": c, "last_week": self.last_week[c], "this_week": self.this_week[c]})
            for c in causes
        ]
        columns = [
            dg.TableColumn("cause", "string"),
            dg.TableColumn("last_week", "int"),
            dg.TableColumn("this_week", "int"),
        ]
        return dg.AssetCheckResult(
            passed=not self.changes,
            asset_key=asset,
            check_name=name,
            severity=dg.AssetCheckSeverity.WARN,
            description="; ".join(self.changes) or self.remark,
            metadata={
                "this_week_records": self.this_week.total(),
                "last_week_records": self.last_week.total(),
                "by_cause": dg.MetadataValue.table(rows, schema=dg.TableSchema(columns=columns)),
            },
        )


def drift_of(database: Database, group_id: str, bounds: Drift) -> Drifted:
    """Compare the two weeks of a group, by the database's clock."""
    rows = database.rows(
        sa.text(
            "select cause, written_at >= sharequeue.clock() - interval '7 days' as recent,"
            " sum(sharequeue.records(offsets)) as records from sharequeue.written_dead_letters"
            " where group_id = :group_id and written_at >= sharequeue.clock() - interval '14 days' group by 1, 2"
        ),
        group_id=group_id,
    )
    weeks: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for row in rows:
        weeks[row["recent"]][row["cause"]] += int(row["records"])
    return compare(weeks[True], weeks[False], bounds, old_enough=_is_old(database, group_id))


def _is_old(database: Database, group_id: str) -> bool:
    """Whether the group had a week before this one: something of it was written, or reported, before that began."""
    rows = database.rows(
        sa.text(
            "select exists (select from sharequeue.written_dead_letters w where w.group_id = :group_id"
            " and w.written_at < sharequeue.clock() - interval '7 days') or exists (select from"
            " sharequeue.share_partition_reports r where r.group_id = :group_id"
            " and r.reported_at < sharequeue.clock() - interval '14 days') as old"
        ),
        group_id=group_id,
    )
    return bool(rows[0]["old"])


def compare(this: Counter[str], last: Counter[str], bounds: Drift, *, old_enough: bool) -> Drifted:
    """What is other this week than last week, beyond the bounds."""
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
    return Drifted(this, last, tuple(changes), "as last week")
