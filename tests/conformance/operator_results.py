"""What does an operator's command come to in a recorded scenario?

The recorded steps ran `kafka-share-groups.sh`; here the operations that our command calls run with the same
arguments, and what they return is compared: the rows, and whether it was done. How the command prints that is its
own tests' matter (`tests/integration/cli`). The coordinator's address has no meaning outside a broker: whoever asks
the service has its address already.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sharequeue.kafka.offset_resets import OffsetResets, Start
from tests.conformance.replay import Result, judged
from tests.conformance.scenario import Step

if TYPE_CHECKING:
    from tests.conformance.service_replay import ServiceReplay


def command_line(replay: ServiceReplay, step: Step) -> Result:
    """One call of the command."""
    args, got = step.do["args"], step.got
    group_id = args[args.index("--group") + 1]
    table = [line.split() for line in got["stdout"] if not line.startswith(("GROUP", "Warn"))]
    broker: dict[str, Any] = {"exit": got["exit"], "rows": table}
    if "--reset-offsets" in args:
        return judged(broker, {"exit": 0, "rows": _reset(replay, group_id, args)})
    if "--state" in args:
        # GROUP COORDINATOR (ID) STATE #MEMBERS, the coordinator left out.
        broker["rows"] = [[row[0], row[-2], row[-1]] for row in table]
        group = replay.engine.group(group_id)
        return judged(broker, {"exit": 0, "rows": [[group_id, group.group_state, str(len(group.members))]]})
    replay.engine.sweep()
    rows = [
        [
            group_id,
            seen.topic,
            str(seen.partition),
            str(seen.spso),
            "-" if seen.lag is None else str(seen.lag),
        ]
        for seen in replay.engine.state.figures.describe(group_id)
    ]
    ours = {"exit": 0, "rows": rows}
    return Result(broker, ours, _why(broker["rows"], rows))


def _why(broker: list[list[str]], ours: list[list[str]]) -> frozenset[int] | None:
    """Line 2: nothing is written yet; line 8: a negative lag is hidden there, and 0 here."""
    if broker == ours:
        return frozenset()
    lines = set()
    for theirs, mine in zip(broker, ours, strict=True):
        if theirs[:3] != mine[:3]:
            return None
        if theirs[3:] == ["-", "-"]:
            lines.add(2)
        elif (theirs[3], theirs[4], mine[4]) == (mine[3], "-", "0"):
            lines.add(8)
        elif theirs != mine:
            return None
    return frozenset(lines)


def _reset(replay: ServiceReplay, group_id: str, args: list[str]) -> list[list[str]]:
    state = replay.engine.state
    wanted: dict[str, tuple[int, ...] | None] = {}
    if "--all-topics" in args:
        wanted = dict.fromkeys(seen.topic for seen in state.figures.describe(group_id))
    else:
        topic, colon, numbers = args[args.index("--topic") + 1].partition(":")
        wanted[topic] = tuple(map(int, numbers.split(","))) if colon else None
    start = _start(OffsetResets(replay.topics, wanted), args)
    rows = state.administration.reset_offsets(
        group_id, start.offsets, start.topic_ids, execute="--execute" in args
    )
    assert not any(row.error for row in rows)
    return [[group_id, row.topic, str(row.partition), str(row.start_offset)] for row in rows]


def _start(resets: OffsetResets, args: list[str]) -> Start:
    if "--to-earliest" in args:
        return resets.to_earliest()
    if "--to-latest" in args:
        return resets.to_latest()
    if "--to-datetime" in args:
        since = timedelta(milliseconds=int(args[args.index("--to-datetime") + 1]))
        return resets.to_datetime(datetime.now(UTC) + since)
    return resets.to_offsets(int(args[args.index("--to-offset") + 1]))
