"""Check what the SQL says of liveness: something can be leased now, or one reason says why not and until when.

Tried, and undone: a new member acquires, with each redelivery; and where a reason has a time, that time passes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.conformance.sql_side import SqlSide
from tests.conformance.tally import Different, Tally

Row = dict[str, Any]


class Liveness:
    """The claims of `share_partition_status` on the share-partitions of some groups that have lag."""

    def __init__(self, sql: SqlSide, groups: list[str], tally: Tally) -> None:
        self.sql, self.groups, self.tally = sql, groups, tally

    def check(self) -> None:
        """Try each claim, with lapsed locks settled. Raises Different where one is not true."""
        self.sql.run("begin")
        try:
            self.sql.rows("sweep", 1000)
            for row in self._lagging():
                self._check_one(row)
        finally:
            self.sql.run("rollback")

    def _lagging(self) -> list[Row]:
        return self.sql.call("blocked", self.groups)

    def _check_one(self, row: Row) -> None:
        self.tally.met[f"nothing to lease: {row['blocked_by']}"] += row["blocked_by"] is not None
        self._acquire(row)
        until: datetime | None = row["blocked_until"]
        if until is None:
            return
        self.sql.run("savepoint later")
        self.sql.rows("clock", until - self.sql.start)
        self.sql.rows("sweep", 1000)
        for then in self._lagging():
            if _name(then) != _name(row):
                continue
            self._acquire(then)
            if then == row:
                raise Different(f"{row} still says so when that time has come")
        self.sql.run("rollback to savepoint later")

    def _acquire(self, row: Row) -> None:
        for redelivery in ("kafka", "fan_out"):
            self.sql.run("savepoint before_it")
            got = self.sql.call(
                "acquire", *_name(row), None, "somebody new", 5, None, None, redelivery, "batch_optimized",
                None, None, None, "{}", "{}",
            )  # fmt: skip
            self.sql.run("rollback to savepoint before_it")
            if any(each["error_code"] for each in got) or bool(got) != (row["blocked_by"] is None):
                raise Different(f"{row}, and an acquire by {redelivery} gets {got}")


def _name(row: Row) -> tuple[object, ...]:
    return row["group_id"], row["topic"], row["partition"]
