"""The asset checks of a share group on its state.

On its SPSO-and-lag report: the invariants of the state, no lease that never ends, a lag
that is known; and, if the yaml has a limit, the lag and how old the oldest is. The age is that of the record in
its topic. `state_results` judges a position. The checks of a run and the observation call it, so that a queue is
judged while its runs fail.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from sharequeue.dagster.position import Position, is_ahead, position_of, silence
from sharequeue.dagster.reports import STUCK_COLUMNS
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.share_group import ShareGroup, duration
from sharequeue.dagster.tables import table_of
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.names import plural

STATE_VERIFIED = "state_verified"
LAG_KNOWN = "lag_known"
NONE_STUCK = "none_stuck"
NONE_LOST = "none_lost"
LAG_BOUNDED = "lag_bounded"
AGE_BOUNDED = "oldest_record_bounded"
ERROR = dg.AssetCheckSeverity.ERROR


def described_checks(group: ShareGroup) -> dict[str, str]:
    """Return the names of the checks of a group's state, each with its description."""
    bounds = group.checks
    described = {
        STATE_VERIFIED: "Every invariant of the group's state holds; for example, no offset is in two leases.",
        LAG_KNOWN: "The ends of the logs were read within the last minute, and no processed offset is behind them.",
        NONE_STUCK: "No lease is long past its lock, none is held by a member that is gone, and no run in Dagster is "
        "active without a process.",
        NONE_LOST: f"Retention has removed at most {bounds.max_lost:,} records before they were processed.",
    }
    if bounds.max_lag is not None:
        described[LAG_BOUNDED] = f"The lag is at most {bounds.max_lag:,} offsets."
    if bounds.max_age is not None:
        described[AGE_BOUNDED] = (
            f"No share-partition's first unfinished record is older than {bounds.max_age}."
        )
    return described


def checks_on_state(group: ShareGroup, asset: dg.AssetKey) -> dg.AssetChecksDefinition:
    """Build the checks of the state of `group`, on the asset `asset`; each can be executed alone."""

    @dg.multi_asset_check(
        name=f"{group.name}_state_invariants",
        specs=[
            dg.AssetCheckSpec(name, asset=asset, description=text)
            for name, text in described_checks(group).items()
        ],
        can_subset=True,
    )
    def checks(
        context: dg.AssetCheckExecutionContext,
        sharequeue_settings: SettingsResource,
        sharequeue_state: StateResource,
    ) -> Iterator[dg.AssetCheckResult]:
        selected = {key.name for key in context.selected_asset_check_keys}
        position = position_of(group, sharequeue_state.database, sharequeue_settings.load())
        yield from (each for each in state_results(group, asset, position) if each.check_name in selected)

    return checks


def state_results(group: ShareGroup, asset: dg.AssetKey, position: Position) -> list[dg.AssetCheckResult]:
    """Return the results of the checks of a group's state at a position; of the invariants if they were checked."""
    bounds, statuses = group.checks, position.everything
    made: dict[str, Callable[[], _StateResult]] = {
        STATE_VERIFIED: lambda: _verified(position.violations or ()),
        LAG_KNOWN: lambda: _lag_known(position),
        NONE_STUCK: lambda: _none_stuck(position, group.group),
        NONE_LOST: lambda: _none_lost(statuses, bounds.max_lost),
        LAG_BOUNDED: lambda: _lag(position.lag, bounds.max_lag or 0),
        AGE_BOUNDED: lambda: _age(position, bounds.max_age or ""),
    }
    if position.violations is None:
        del made[STATE_VERIFIED]
    results = {name: made[name]() for name in described_checks(group) if name in made}
    return [
        dg.AssetCheckResult(
            passed=not found.problem,
            check_name=name,
            asset_key=asset,
            severity=ERROR if name in (STATE_VERIFIED, NONE_LOST) else dg.AssetCheckSeverity.WARN,
            description=found.problem or found.right,
            metadata=found.metadata,
        )
        for name, found in results.items()
    ]


@dataclass(frozen=True, slots=True)
class _StateResult:
    problem: str
    """Empty if the check passes."""
    right: str
    """The description of a check that passes."""
    metadata: dict[str, Any]


def evaluation(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """Return the result of a check as an event without a run."""
    if result.asset_key is None or result.check_name is None:
        raise ValueError("expected a result with the key of its asset and the name of its check")
    return dg.AssetCheckEvaluation(
        result.asset_key,
        result.check_name,
        result.passed,
        metadata=result.metadata,
        severity=result.severity,
        description=result.description,
    )


def _verified(violations: Sequence[str]) -> _StateResult:
    return _StateResult("\n".join(violations), "every invariant holds", {"violations": len(violations)})


def _lag_known(position: Position) -> _StateResult:
    statuses = position.everything
    ahead = [status for status in statuses if is_ahead(status) or status.truncated_to is not None]
    where = ", ".join(str(status.share_partition) for status in ahead)
    problems = (silence(position.work), f"ahead of the log: {where}" if ahead else "")
    columns = {"topic": "string", "partition": "int", "spso": "int", "log_end": "int"}
    return _StateResult(
        "; ".join(filter(None, problems)),
        "the ends of all logs were read, and no share-partition is ahead of its log",
        {"lag_records": sum(s.lag for s in statuses), "ahead": table_of(columns, ahead)},
    )


def _none_stuck(position: Position, group_id: str) -> _StateResult:
    stuck, gone = position.stuck, position.gone_runs
    leases = (
        f"{len(stuck)} leases are stuck: see `sharequeue state show --group {group_id}`; a run, or the service, "
        "releases expired locks"
    )
    runs = f"the queue stands still, until another run begins: {'; '.join(gone)}. The sensor has ended it"
    metadata = {
        "stuck_leases": len(stuck),
        "stuck": table_of(STUCK_COLUMNS, stuck[:20]),
        "gone_runs": len(gone),
    }
    problems = (leases if stuck else "", runs if gone else "")
    return _StateResult("; ".join(filter(None, problems)), "no lease is stuck", metadata)


def _none_lost(statuses: Sequence[SharePartitionStatus], most: int) -> _StateResult:
    lost = sum(s.lost_records for s in statuses)
    where = [status for status in statuses if status.lost_records]
    problem = (
        f"{lost:,} records were removed by retention before they were processed: give their topics a longer "
        f"retention, or run more often. `checks: {{max_lost: {lost}}}` acknowledges them"
    )
    columns = {"topic": "string", "partition": "int", "lost_records": "int"}
    return _StateResult(
        problem if lost > most else "",
        f"{lost:,} records were lost, all of them known" if lost else "no record was lost",
        {"lost_records": lost, "lost": table_of(columns, where)},
    )


def _lag(lag: int, most: int) -> _StateResult:
    problem = f"the lag is {plural(lag, 'offset')}, more than {most:,}" if lag > most else ""
    return _StateResult(problem, f"the lag is {plural(lag, 'offset')}", {"lag_records": lag})


def _age(position: Position, most: str) -> _StateResult:
    waiting = [status for status in position.everything if status.lag and status.oldest_offset is not None]
    ages = {status: position.ages.get((status.topic, status.partition)) for status in waiting}
    known = {status: age for status, age in ages.items() if age is not None}
    unknown, oldest = len(waiting) - len(known), max(known.values(), default=0.0)
    old = [status for status, age in known.items() if age > duration(most).total_seconds()]
    where = ", ".join(f"{s.share_partition} at offset {s.oldest_offset}" for s in old)
    right = [f"the oldest waiting record is {oldest:,.0f} s old"] if known else []
    if unknown:
        right.append(f"the age in {unknown:,} share-partitions is unknown: their records cannot be read")
    return _StateResult(
        f"records older than {most} wait: {where}" if old else "",
        "; ".join(right) or "nothing waits",
        {"oldest_seconds": round(oldest, 3), "unknown_share_partitions": unknown},
    )
