"""The checks of the columns of accepted rows, which a `defs.yaml` asks for; they are read with Arrow, without Spark.

A check judges the rows that were accepted since its last result. If there are none, it keeps that result.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.dagster.columns import ColumnFields
from sharequeue.dagster.io_manager import sink_of
from sharequeue.dagster.names import dagster_name
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import table
from sharequeue.domain.errors import PipelineError, first_line
from sharequeue.domain.names import plural
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import OutputRow
from sharequeue.outputs.dataset import open_output
from sharequeue.state import State

if TYPE_CHECKING:
    from pyarrow.compute import Expression
    from pyarrow.dataset import Dataset

CHECKED_UNTIL = "checked_until"
"""The metadata key of the time of the newest acknowledgement whose rows were checked."""
RECENT = "recent_leases"
"""The metadata key of the leases that were acknowledged shortly before that time, and were checked."""
_POSITION = {CHECKED_UNTIL, RECENT}
AGAIN = timedelta(minutes=1)
"""How much later than the time of its acknowledgement a transaction may have committed."""
MOST_EXECUTIONS = 20
"""How many executions of a check are searched for its last result. Without one, all rows are checked again."""
SAMPLES = 5
_AT = {"topic": "string", "partition": "int", "offset": "int"}


@dataclass(frozen=True, slots=True)
class ColumnCheck:
    """One constraint of a column."""

    column: ColumnFields
    constraint: str
    words: str

    @property
    def name(self) -> str:
        """The name of the check in Dagster."""
        return dagster_name(f"{self.column.name}_{self.constraint}")

    @property
    def severity(self) -> dg.AssetCheckSeverity:
        """The severity of a failure."""
        return dg.AssetCheckSeverity[self.column.severity]

    def violated(self, rows: "Dataset") -> "Expression":
        """Return the condition of the rows that violate it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column, given = pc.field(self.column.name), self.column
        match self.constraint:
            case "not_null":
                return column.is_null()
            case "accepted_values":
                kind = rows.schema.field(given.name).type
                values = pa.array(given.accepted_values)
                return column.is_null() | ~column.isin(values.cast(kind))
            case "min":
                return column < pc.scalar(given.min)
            case "max":
                return column > pc.scalar(given.max)
            case _:
                return ~pc.match_substring_regex(column, f"^(?:{given.matches})$")


def checks_of(group: ShareGroup) -> list[ColumnCheck]:
    """Return the checks of the columns of a group."""
    return [
        ColumnCheck(column, constraint, words)
        for column in group.columns
        for constraint, words in column.constraints()
    ]


def column_checks(group: ShareGroup, asset: dg.AssetKey) -> list[dg.AssetChecksDefinition]:
    """Build the checks of the columns of `group`, on the asset `asset`; nothing if its yaml asks for none."""
    every = checks_of(group)
    if not every:
        return []

    @dg.multi_asset_check(
        name=f"{group.name}_columns",
        specs=[
            dg.AssetCheckSpec(
                each.name,
                asset=asset,
                description=f"`{each.column.name}` {each.words}, in the rows accepted since the last result.",
            )
            for each in every
        ],
        can_subset=True,
    )
    def checks(
        context: dg.AssetCheckExecutionContext, sharequeue_state: StateResource
    ) -> Iterator[dg.AssetCheckResult]:
        state, launched = sharequeue_state.state, group.run.launch is not None
        sink = sink_of(group.pipeline, group.group, state, launched=launched)
        selected = {key.name for key in context.selected_asset_check_keys}
        for each in every:
            if each.name in selected:
                last = _last(context.instance, dg.AssetCheckKey(asset, each.name))
                yield _judged(each, asset, state, group.group, sink, last)

    return [checks]


def _last(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """Return the last result of a check; None without one. Runs that have planned the check have none yet."""
    for record in instance.event_log_storage.get_asset_check_execution_history(key, MOST_EXECUTIONS):
        event = None if record.event is None else record.event.dagster_event
        if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            return event.asset_check_evaluation_data
    return None


def _judged(
    check: ColumnCheck,
    asset: dg.AssetKey,
    state: State,
    group_id: str,
    sink: str,
    last: dg.AssetCheckEvaluation | None,
) -> dg.AssetCheckResult:
    since, seen = _checked(last)
    counted = [row for row in state.outputs.counted(group_id, sink) if row.records]
    new = [
        row
        for row in counted
        if (since is None or (row.acknowledged_at > since - AGAIN and row.lease_id not in seen))
    ]
    if last is not None and not new:
        return _result(check, asset, last.passed, last.description or "", dict(last.metadata))
    try:
        output = open_output(state, group_id, sink, known=[sink], leases=[row.lease_id for row in new])
        with output.naming_damage():
            problem, found = _violations(check, output.rows) if new else ("", {})
    except PipelineError as error:
        # Rows that could not be read are not checked: the next result is of them, too.
        position = {} if last is None else {at: last.metadata[at] for at in _POSITION & last.metadata.keys()}
        return _result(check, asset, False, first_line(error), position)
    right = f"{check.words}: {plural(sum(row.records for row in new), 'new record')}"
    return _result(check, asset, not problem, problem or right, {**found, **_kept(counted)})


def _violations(check: ColumnCheck, rows: "Dataset") -> tuple[str, dict[str, Any]]:
    """Return what is wrong with rows, empty if nothing is, with the metadata of the result."""
    import pyarrow as pa

    name = check.column.name
    if name not in rows.schema.names:
        return f"the rows have no column {name}: they have {', '.join(rows.schema.names)}", {}
    try:
        bad = rows.filter(check.violated(rows))
        number = bad.count_rows()
        first = bad.head(SAMPLES, columns=[*_AT, name]).to_pylist() if number else []
    except (pa.ArrowException, TypeError) as error:
        return f"column {name}, which is {rows.schema.field(name).type}: {first_line(error)}", {}
    metadata: dict[str, Any] = {"unexpected_records": number, "checked_records": rows.count_rows()}
    if not number:
        return "", metadata
    metadata["found"] = table(
        {**_AT, name: "string"}, ([*(row[at] for at in _AT), str(row[name])] for row in first)
    )
    at = first[0]
    where = f"{at['topic']}-{at['partition']}@{at['offset']}"
    return (
        f"{plural(number, 'row')} of which not true is: {name} {check.words}; the first is {where}",
        metadata,
    )


def _result(
    check: ColumnCheck, asset: dg.AssetKey, passed: bool, description: str, metadata: dict[str, Any]
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=asset,
        check_name=check.name,
        severity=check.severity,
        description=description,
        metadata=metadata,
    )


def _kept(counted: Sequence[OutputRow]) -> dict[str, Any]:
    """Return the metadata from which the next result continues, after these outputs were checked."""
    if not counted:
        return {}
    until = max(row.acknowledged_at for row in counted)
    recent = OffsetSet.from_offsets(row.lease_id for row in counted if row.acknowledged_at > until - AGAIN)
    return {CHECKED_UNTIL: dg.MetadataValue.timestamp(until), RECENT: str(recent)}


def _checked(last: dg.AssetCheckEvaluation | None) -> tuple[datetime | None, Container[int]]:
    """Return up to which acknowledgement rows were checked, and the leases that were checked shortly before."""
    metadata = {} if last is None else last.metadata
    until, recent = metadata.get(CHECKED_UNTIL), metadata.get(RECENT)
    if not isinstance(until, dg.TimestampMetadataValue) or not isinstance(recent, dg.TextMetadataValue):
        return None, ()
    return datetime.fromtimestamp(until.value, UTC), OffsetSet.parse(recent.text or "{}")


__all__ = ["checks_of", "column_checks"]
