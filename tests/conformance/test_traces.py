"""122 scenarios that were recorded from Apache Kafka 4.4.0, replayed step by step.

The in-memory engine is held to the engine's steps; Postgres, with the service's groups around it, to those and to the
group coordinator's, the command line's and the client's. Dead letters have `test_dead_letter_traces.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from tests.conformance.differences import Difference, load
from tests.conformance.engines import ENGINES
from tests.conformance.replay import Replay, Result
from tests.conformance.scenario import ENGINE, SCENARIOS, STAGE, Scenario
from tests.conformance.service_replay import ServiceReplay

LINES, DIFFERENCES, OF_THE_SERVICE = load()
REPLAYS: dict[str, Callable[[Scenario], Replay]] = {
    "in memory": lambda scenario: Replay(scenario, ENGINES["in memory"]()),
    "postgres": ServiceReplay,
}


def judge(name: str, number: int, result: Result, listed: Difference | None) -> str | None:
    """What is wrong with the result of a step; None when it equals the broker's, or differs as listed."""
    where = f"{name} step {number}: "
    if result.lines == frozenset():
        return where + "listed as a difference, but equal" if listed else None
    # Ours as it would be listed, to copy once the line is known.
    entry = {"scenario": name, "step": number, "lines": sorted(result.lines or ()), "ours": result.ours}
    told = f"\n  broker {json.dumps(result.broker)}\n  ours   {json.dumps(entry, separators=(',', ':'))},"
    if listed is None:
        return where + "a difference that is not listed" + told
    if result.ours != listed.ours:
        return where + "not the result that is listed" + told
    if not listed.lines or not listed.lines <= LINES.keys():
        return where + "no line of the table explains it" + told
    if result.lines is not None and result.lines != listed.lines:
        return where + f"listed under {sorted(listed.lines)}, but falls under {sorted(result.lines)}" + told
    return None


@pytest.mark.parametrize("engine", REPLAYS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recorded_scenario_step_by_step(
    name: str, engine: str, conformance_counts: dict[str, Counter[str]]
) -> None:
    """Every step that is compared is equal to the broker's, or differs as listed under a line of the table; the state
    keeps its invariants throughout."""
    replay = REPLAYS[engine](SCENARIOS[name])
    differences = DIFFERENCES if engine == "in memory" else DIFFERENCES | OF_THE_SERVICE
    counts = conformance_counts.setdefault(engine, Counter())
    wrong = []
    for number, (step, result) in enumerate(replay.run()):
        assert (result is None) == (step.room not in replay.compares), (number, step)
        if result is None:
            counts["stage" if step.room == STAGE else f"elsewhere {step.room}"] += 1
            continue
        listed = differences.get((name, number))
        problem = judge(name, number, result, listed)
        verdict = "unexplained" if problem else "listed" if listed and listed.lines else "equal"
        counts.update((verdict, f"room {step.room}: {verdict}"))
        counts.update(f"line {line}" for line in (listed.lines if listed else ()))
        wrong += [problem] if problem else []
    assert not wrong, "\n".join(wrong)
    assert replay.engine.verify() == []


def test_every_listed_difference_belongs_to_a_step_that_is_compared() -> None:
    """The list names no scenario or step that does not exist, and each line that it uses is explained."""
    for (name, number), difference in [*DIFFERENCES.items(), *OF_THE_SERVICE.items()]:
        assert SCENARIOS[name].steps[number].room in ServiceReplay.compares
        assert difference.lines <= LINES.keys()
    assert all(SCENARIOS[name].steps[number].room == ENGINE for name, number in DIFFERENCES)


def test_the_recorded_scenarios_are_all_there() -> None:
    """No scenario was dropped on the way: at least the 122 that were recorded first."""
    assert len(SCENARIOS) >= 122
