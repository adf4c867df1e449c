"""122 scenarios that were recorded from Apache Kafka 4.4.0, replayed on every engine, step by step."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.conformance.differences import load
from tests.conformance.engines import ENGINES
from tests.conformance.replay import Replay, Result
from tests.conformance.scenario import ENGINE, SCENARIOS

LINES, DIFFERENCES = load()


def judge(name: str, number: int, result: Result) -> str | None:
    """What is wrong with the result of a step; None when it equals the broker's, or differs as listed."""
    listed = DIFFERENCES.get((name, number))
    where = f"{name} step {number}: "
    if result.lines == frozenset():
        return where + "listed as a difference, but equal" if listed else None
    told = f"\n  broker {json.dumps(result.broker)}\n  ours   {json.dumps(result.ours)}"
    if listed is None:
        return where + "a difference that is not listed" + told
    if result.ours != listed.ours:
        return where + "not the result that is listed" + told
    if not listed.lines or not listed.lines <= LINES.keys():
        return where + "no line of the table explains it" + told
    if result.lines is not None and result.lines != listed.lines:
        return where + f"listed under {sorted(listed.lines)}, but falls under {sorted(result.lines)}" + told
    return None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recorded_scenario_step_by_step(
    name: str, engine: str, conformance_counts: dict[str, Counter[str]]
) -> None:
    """Every step of the engine's is equal to the broker's, or differs as listed under a line of the table; the
    state keeps its invariants throughout."""
    replay = Replay(SCENARIOS[name], ENGINES[engine]())
    counts = conformance_counts.setdefault(engine, Counter())
    wrong = []
    for number, (step, result) in enumerate(replay.run()):
        counts[f"room {step.room}"] += 1
        if result is None:
            continue
        problem = judge(name, number, result)
        listed = DIFFERENCES.get((name, number))
        counts["unexplained" if problem else "listed" if listed else "equal"] += 1
        counts.update(f"line {line}" for line in (listed.lines if listed else ()))
        wrong += [problem] if problem else []
    assert not wrong, "\n".join(wrong)
    assert replay.engine.verify() == []


def test_every_listed_difference_belongs_to_a_step_of_the_engine() -> None:
    """The list names no scenario or step that does not exist, and each line that it uses is explained."""
    for (name, number), difference in DIFFERENCES.items():
        assert SCENARIOS[name].steps[number].room == ENGINE
        assert difference.lines <= LINES.keys()


def test_the_recorded_scenarios_are_all_there() -> None:
    """No scenario was dropped on the way: at least the 122 that were recorded first."""
    assert len(SCENARIOS) >= 122
