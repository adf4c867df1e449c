"""The asset checks of a share group on its state.

On its SPSO-and-lag report: the invariants of the state, no lease that never ends, a lag
that is known; and, if the yaml has a limit, the lag and how old the oldest is. The age is that of the record in
its topic. `state_results` judges a position. The checks of a run and the observation call it, so that a queue is
judged while its runs fail.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from sharequeue.dagster.position import Position, is_ahead, position_of, silence
from sharequeue.dagster.reports import STUCK_COLUMNS
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import table_of
from sharequeue.dagster.yaml_values import duration
from sharequeue.domain.names import plural

LAG_BOUNDED = "lag_bounded"
AGE_BOUNDED = "oldest_record_bounded"


@dataclass(frozen=True, slots=True)
class _StateResult:
    problem: str
    """Empty if the check passes."""
    right: str
    """The description of a check that passes."""
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StateCheck:
    """A check of a group's state: one entry of `STATE_CHECKS`."""

    name: str
    description: str
    """What holds if it passes. A name in braces is a bound of the yaml (`checks`)."""
    judge: Callable[[ShareGroup, Position], _StateResult | None]
    """Returns the result at a position; None if what it needs was not read."""
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN
    bound: str = ""
    """The bound of the yaml without which the check does not exist."""

    def is_of(self, group: ShareGroup) -> bool:
        """Return whether a group has the check."""
        return not self.bound or getattr(group.checks, self.bound) is not None


def checks_on_state(group: ShareGroup, asset: dg.AssetKey) -> dg.AssetChecksDefinition:
    """Build the checks of the state of `group`, on the asset `asset`; each can be executed alone."""

    @dg.multi_asset_check(
        name=f"{group.name}_state_invariants",
        specs=[
            dg.AssetCheckSpec(
                each.name, asset=asset, description=each.description.format(**dict(group.checks))
            )
            for each in STATE_CHECKS
            if each.is_of(group)
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
    results = {each: each.judge(group, position) for each in STATE_CHECKS if each.is_of(group)}
    return [
        dg.AssetCheckResult(
            passed=not found.problem,
            check_name=each.name,
            asset_key=asset,
            severity=each.severity,
            description=found.problem or found.right,
            metadata=found.metadata,
        )
        for each, found in results.items()
        if found is not None
    ]


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


def _verified(_: ShareGroup, position: Position) -> _StateResult | None:
    violations = position.violations
    if violations is None:
        return None
    return _StateResult("\n".join(violations), "every invariant holds", {"violations": len(violations)})


def _lag_known(_: ShareGroup, position: Position) -> _StateResult:
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


def _none_stuck(group: ShareGroup, position: Position) -> _StateResult:
    stuck, gone = position.stuck, position.gone_runs
    leases = (
        f"{len(stuck)} leases are stuck: see `sharequeue state show --group {group.group}`; a run, or the service, "
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


def _none_lost(group: ShareGroup, position: Position) -> _StateResult:
    lost = sum(s.lost_records for s in position.everything)
    where = [status for status in position.everything if status.lost_records]
    problem = (
        f"{lost:,} records were removed by retention before they were processed: give their topics a longer "
        f"retention, or run more often. `checks: {{max_lost: {lost}}}` acknowledges them"
    )
    columns = {"topic": "string", "partition": "int", "lost_records": "int"}
    return _StateResult(
        problem if lost > group.checks.max_lost else "",
        f"{lost:,} records were lost, all of them known" if lost else "no record was lost",
        {"lost_records": lost, "lost": table_of(columns, where)},
    )


def _results(group: ShareGroup, position: Position) -> _StateResult:
    results = position.work.results
    held = [each for each in results if each.held_reason is not None]
    rows = position.work.pending_rows
    oldest = max(((position.work.at - each.oldest_at).total_seconds() for each in results), default=0.0)
    reasons = "; ".join(
        f"{plural(each.rows, 'accepted row')} of sink {each.sink} wait: {each.held_reason}" for each in held
    )
    return _StateResult(
        reasons,
        f"{plural(rows, 'accepted row')} wait for the next round or run" if rows else "no result waits",
        {
            "results_waiting_rows": rows,
            "results_oldest_seconds": round(oldest, 3),
            "results_held_sinks": len(held),
        },
    )


def _lag(group: ShareGroup, position: Position) -> _StateResult:
    lag, most = position.lag, group.checks.max_lag or 0
    problem = f"the lag is {plural(lag, 'offset')}, more than {most:,}" if lag > most else ""
    return _StateResult(problem, f"the lag is {plural(lag, 'offset')}", {"lag_records": lag})


def _age(group: ShareGroup, position: Position) -> _StateResult:
    most = group.checks.max_age or ""
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


def _held(group: ShareGroup, position: Position) -> _StateResult:
    most = group.checks.max_held or ""
    ages = {
        status: (position.work.at - status.open_since).total_seconds()
        for status in position.statuses
        if status.open_since is not None
    }
    late = [status for status, age in ages.items() if age > duration(most).total_seconds()]
    where = ", ".join(
        f"{s.share_partition} behind offset {s.open_offset} ({plural(s.held_records, 'held record')})"
        for s in late
    )
    keys, held = sum(s.open_keys for s in ages), sum(s.held_records for s in ages)
    return _StateResult(
        f"keys are open for longer than {most}: {where}. `sharequeue groups describe --group {group.group} --keys` "
        "lists them, and what each waits for"
        if late
        else "",
        f"{plural(keys, 'key')} open, none for longer than {most}" if keys else "no key is open",
        {
            "held_records": held,
            "open_keys": keys,
            "letter_keys": sum(s.letter_keys for s in ages),
            "oldest_open_key_seconds": round(max(ages.values(), default=0.0), 3),
        },
    )


STATE_CHECKS = (
    StateCheck(
        "state_verified",
        "Every invariant of the group's state holds; for example, no offset is in two leases.",
        _verified,
        dg.AssetCheckSeverity.ERROR,
    ),
    StateCheck(
        "lag_known",
        "The ends of the logs were read within the last minute, and no processed offset is behind them.",
        _lag_known,
    ),
    StateCheck(
        "none_stuck",
        "No lease is long past its lock, none is held by a member that is gone, and no run in Dagster is active "
        "without a process.",
        _none_stuck,
    ),
    StateCheck(
        "none_lost",
        "Retention has removed at most {max_lost:,} records before they were processed.",
        _none_lost,
        dg.AssetCheckSeverity.ERROR,
    ),
    StateCheck(
        "results_reach_their_topic",
        "No accepted row waits because the topic or table of its sink could not be written.",
        _results,
    ),
    StateCheck(LAG_BOUNDED, "The lag is at most {max_lag:,} offsets.", _lag, bound="max_lag"),
    StateCheck(
        AGE_BOUNDED,
        "No share-partition's first unfinished record is older than {max_age}.",
        _age,
        bound="max_age",
    ),
    StateCheck(
        "none_held_long",
        "No key is open, so that later records of it are held, for longer than {max_held}.",
        _held,
        bound="max_held",
    ),
)
"""The checks, in the order in which they are shown. `docs/reference/checks.md` lists them from here."""
