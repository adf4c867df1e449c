"""How many recorded steps are compared, how many are equal, and how many differ under which line?

Counted from the scenarios and the list of differences, which the tests hold against what the engines do: a step that
is compared and not listed is equal. `table` writes it into `docs/evidence/conformance.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.conformance.differences import MARKER, Difference, load
from tests.conformance.live_scenarios import LIVE
from tests.conformance.live_steps import LOOKED_AT_AFTER
from tests.conformance.replay import Replay
from tests.conformance.scenario import DEAD_LETTERS, ENGINE, SCENARIOS, Step
from tests.conformance.service_replay import ServiceReplay

WHOSE = {
    ENGINE: "share-partitions: fetch, acknowledge, release, describe, alter, delete",
    "coordinator": "members: join, heartbeat, leave, assignment",
    "command line": "`kafka-share-groups`: describe, reset",
    "client": "an ordinary client: poll, acknowledge, commit, close",
    DEAD_LETTERS: "dead letters and their topic",
}


def _counted(
    rooms: frozenset[str], listed: Mapping[tuple[str, int], Difference]
) -> tuple[Counter[str], Counter[str], Counter[int]]:
    """Per room how many steps are equal, and how many differ; per line how many."""
    equal, differ, lines = Counter[str](), Counter[str](), Counter[int]()
    for name, scenario in SCENARIOS.items():
        for number, step in enumerate(scenario.steps):
            if step.room not in rooms:
                continue
            difference = listed.get((name, number))
            (differ if difference else equal)[step.room] += 1
            lines.update(difference.lines if difference else ())
    return equal, differ, lines


def written() -> str:
    """The counts as two tables."""
    told, engines, service = load()
    marker = {MARKER: Difference(frozenset((25,)), None)}
    in_memory = _counted(Replay.compares, engines)
    rooms = ServiceReplay.compares | {DEAD_LETTERS}
    equal, differ, lines = _counted(rooms, engines | service | marker)
    rows = [
        ("in memory", WHOSE[ENGINE], in_memory[0][ENGINE], in_memory[1][ENGINE]),
        *(("Postgres and the service", says, equal[room], differ[room]) for room, says in WHOSE.items()),
    ]
    text = [
        "| engine | steps | equal | differ under a line | unexplained |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    text += [f"| {engine} | {says} | {same} | {other} | 0 |" for engine, says, same, other in rows]
    sums = equal.total(), differ.total()
    text += [f"| Postgres and the service | all {sum(sums)} | {sums[0]} | {sums[1]} | 0 |", ""]
    text += ["| line | the difference | steps |", "| ---: | --- | ---: |"]
    beside = {line for live in LIVE.values() for do in live.steps for line in do.get("lines", ())}
    text += [
        f"| {line} | {says} | {lines[line] or 'beside a broker'} |"
        for line, says in told.items()
        if lines[line] or line in beside
    ]
    in_both = [_live_steps(rooms) for rooms in (Replay.compares, ServiceReplay.compares)]
    text += [
        "",
        f"Beside a broker, in each run: {len(LIVE)} scenarios; on Postgres and the service {in_both[1]} steps are",
    ]
    text += [f"compared, in memory {in_both[0]}; unexplained 0."]
    return "\n".join(text)


def _live_steps(rooms: frozenset[str]) -> int:
    """How many steps of the scenarios that run beside a broker are compared, looks at the offsets included."""
    steps = [Step(do, {}) for live in LIVE.values() for do in live.steps]
    return sum(step.room in rooms for step in steps) + sum(step.op in LOOKED_AT_AFTER for step in steps)
