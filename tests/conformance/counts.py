"""Count the recorded steps that are compared, equal, and different under which line.

Counted from the scenarios and the list of differences, which the tests hold against what the engines do: a step that
is compared and not listed is equal. What is run beside a broker has its counts in `live_counts.json`. `table` writes
them into `docs/evidence/conformance.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from tests.conformance.differences import MARKER, Difference, load
from tests.conformance.live_counts import live_counts
from tests.conformance.live_java_scenarios import JAVA
from tests.conformance.live_random import FIRST_SEED, SEEDS
from tests.conformance.live_scenarios import LIVE
from tests.conformance.replay import Replay
from tests.conformance.scenario import DEAD_LETTERS, ENGINE, SCENARIOS
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
    text += ["| line | the difference | recorded steps | beside a broker |", "| ---: | --- | ---: | ---: |"]
    beside = _summed([*LIVE, *DRAWN, *JAVA], "postgres")
    text += [
        f"| {line} | {says} | {lines[line]} | {beside[f'line {line}']} |"
        for line, says in told.items()
        if lines[line] or beside[f"line {line}"]
    ]
    text += ["", "Beside a broker:", "", *_HEAD_LIVE]
    for says, scenarios, engine in _LIVE:
        counted = _summed(scenarios, engine)
        same, other = counted["equal"], counted["listed"]
        text.append(f"| {says} | {len(scenarios)} | {same + other} | {same} | {other} | 0 |")
    return "\n".join(text)


_HEAD_LIVE = (
    "| engine | scenarios | steps | equal | differ under a line | unexplained |",
    "| --- | ---: | ---: | ---: | ---: | ---: |",
)
DRAWN = [f"seed {FIRST_SEED + number}" for number in range(SEEDS)]
_LIVE: tuple[tuple[str, Collection[str], str], ...] = (
    ("in memory; members use the wire protocol", LIVE, "in memory"),
    ("Postgres and the service; members use the wire protocol", LIVE, "postgres"),
    ("in memory; random steps", DRAWN, "in memory"),
    ("Postgres and the service; random steps", DRAWN, "postgres"),
    ("in memory; Kafka's Java clients", JAVA, "in memory"),
    ("Postgres and the service; Kafka's Java clients", JAVA, "postgres"),
    ("`sharequeue.ShareConsumer`; steps of Kafka's Java clients", JAVA, "the consumer"),
)
"""Which scenarios are compared beside a broker, on what."""


def _summed(scenarios: Collection[str], engine: str) -> Counter[str]:
    """The counts of these scenarios on one engine."""
    found = live_counts()
    return sum((Counter(found[name][engine]) for name in scenarios), Counter())
