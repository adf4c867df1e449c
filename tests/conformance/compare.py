"""Compare two states, and name the intended difference that explains an unequal one.

The broker shows what it had *written*, which lags behind; ours is always the present. So persisted state is
compared offset by offset. Lines are those of the table of intended differences in
`docs/evidence/conformance.md`: 1, the persisted start is one write behind; 2, nothing is persisted before the first
write; 3, ACQUIRED is never persisted; 4, every alter raises the state epoch; 12, archived aborted records are never
written.
"""

from __future__ import annotations

from typing import Any

from tests.oracle import Description, RecordState

Runs = list[list[Any]]
Entry = tuple[str, int]


def state_of(view: Description | None) -> dict[str, Any]:
    """Our state in the broker's words: runs of equal state and count, ACQUIRED ones included."""
    if view is None:
        return {"startOffset": -1, "deliveryCompleteCount": -1, "batches": []}
    runs: Runs = []
    for offset, seen in view.offsets.items():
        if seen.state is RecordState.AVAILABLE and not seen.delivery_count:
            continue  # never delivered: the broker does not keep it either
        alike = [seen.state.name, seen.delivery_count]
        if runs and runs[-1][1] + 1 == offset and runs[-1][2:] == alike:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset, *alike])
    return {
        "startOffset": view.spso,
        "deliveryCompleteCount": view.delivery_complete_count,
        "stateEpoch": view.state_epoch,
        "batches": runs,
    }


def explain_state(
    broker: dict[str, Any], ours: dict[str, Any], aborted: set[int], log_start: int
) -> set[int] | None:
    """The lines that a difference of persisted states falls under: none when equal, None when unexplained."""
    if ours["startOffset"] < 0:
        same = broker.get("startOffset", -1) < 0 and not broker.get("batches")
        return set() if same else None
    if "startOffset" not in broker:
        return None
    lines: set[int] = set()
    unwritten = broker["startOffset"] < 0
    if unwritten:
        lines.add(2)
    if ours["stateEpoch"] != broker["stateEpoch"]:
        if ours["stateEpoch"] < broker["stateEpoch"]:
            return None
        lines.add(4)
    spso = ours["startOffset"]
    start = spso if unwritten else broker["startOffset"]
    theirs, mine = _entries(broker["batches"]), _entries(ours["batches"])
    if not unwritten:
        if start > spso:
            return None
        # What lag counts as finished: the same number, but for what the broker has not written.
        behind = spso + ours["deliveryCompleteCount"] - start - broker["deliveryCompleteCount"]
        archived = sum(o < spso or mine.get(o, ("",))[0] == "ARCHIVED" for o in aborted)
        why = _behind(behind, archived, start, spso, log_start) if behind else {1}
        if why is None:
            return None
        if start != spso or broker["deliveryCompleteCount"] != ours["deliveryCompleteCount"]:
            lines |= why
    for offset in range(start, max([spso, *(o + 1 for o in theirs), *(o + 1 for o in mine)])):
        line = _explain_offset(offset, theirs.get(offset), mine.get(offset), spso, aborted, log_start)
        if line is None:
            return None
        lines |= line
    return lines


def _behind(records: int, archived: int, start: int, spso: int, log_start: int) -> set[int] | None:
    """Why a broker has not written that so many records are finished: it has archived those of aborted transactions,
    or it has not read below a log start that moved."""
    if 0 < records <= archived:
        return {12}
    return {14} if 0 < records <= spso - start and spso >= log_start > 0 else None


def _explain_offset(
    offset: int, theirs: Entry | None, mine: Entry | None, spso: int, aborted: set[int], log_start: int
) -> set[int] | None:
    if offset < spso:
        if theirs is not None and theirs[0] in ("ACKNOWLEDGED", "ARCHIVED"):
            return {1}
        return {12} if offset in aborted else {14} if offset < log_start else None
    if theirs == mine:
        return set()
    if mine is not None and mine[0] == "ACQUIRED":
        return {3} if theirs is None or theirs == ("AVAILABLE", mine[1] - 1) else None
    if mine is not None and mine[0] == "ARCHIVED" and offset in aborted:
        return {12}
    return None


def explain_offsets(
    broker: dict[str, Any] | None, ours: dict[str, Any] | None, *, decorated: bool
) -> set[int] | None:
    """The lines that a difference of described offsets falls under."""
    if broker is not None and broker["startOffset"] < 0:
        broker = None
    if broker is None:
        return set() if ours is None else {2}
    if ours is None:
        return None
    if broker["lag"] != ours["lag"]:
        return {8} if not decorated and broker["lag"] < 0 and ours["lag"] == 0 else None
    if broker["startOffset"] == ours["startOffset"]:
        return set()
    return {1} if broker["startOffset"] < ours["startOffset"] else None


def explain_unwritten(
    broker: dict[str, Any] | None, ours: Description, aborted: set[int], log_start: int
) -> set[int] | None:
    """The lines under which a lag differs because the broker has not written what it has archived: records of aborted
    transactions (12), and what lies below a log start that moved (14)."""
    if broker is None or broker["startOffset"] > ours.spso:
        return None
    archived = sum(
        offset < ours.spso or (offset in ours.offsets and ours.offsets[offset].state is RecordState.ARCHIVED)
        for offset in aborted
    )
    return _behind(broker["lag"] - ours.lag, archived, broker["startOffset"], ours.spso, log_start)


def fold(log: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The state that the records of the broker's state log add up to (R-EP-7, R-EP-8); None after a tombstone."""
    state: dict[str, Any] | None = None
    entries: dict[int, Entry] = {}
    for record in log:
        if record.get("tombstone"):
            state, entries = None, {}
            continue
        if record["type"] == "SNAPSHOT" or state is None:
            state, entries = {"startOffset": -1, "stateEpoch": record.get("stateEpoch", 0)}, {}
        state["startOffset"] = max(state["startOffset"], record["startOffset"])
        state["deliveryCompleteCount"] = record["deliveryCompleteCount"]
        for offset, (name, count) in _entries(record["batches"]).items():
            before = entries.get(offset)
            rank = (count, RecordState[name])
            if before is None or rank >= (before[1], RecordState[before[0]]):
                entries[offset] = (name, count)
    if state is not None:
        start = state["startOffset"]
        state["batches"] = [[o, o, *entry] for o, entry in sorted(entries.items()) if o >= start]
    return state


def _finished(state: dict[str, Any]) -> int:
    return int(state["startOffset"] + state["deliveryCompleteCount"])


def _entries(runs: Runs) -> dict[int, Entry]:
    return {o: (str(name), int(count)) for first, last, name, count in runs for o in range(first, last + 1)}
