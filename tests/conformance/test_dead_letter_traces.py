"""The scenarios of dead letters that were recorded from Apache Kafka 4.4.0, on our writer and a real broker.

`test_traces.py` compares what they do to the state on both engines; here the dead letters themselves are written,
into topics of the test's broker, and read back. About a second a scenario.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from sharequeue.deadletters.topic import TopicKeeper
from sharequeue.domain.settings import Settings
from tests.conformance.broker_stage import BrokerReplay
from tests.conformance.differences import MARKER
from tests.conformance.postgres_engine import PostgresEngine
from tests.conformance.replay import Result
from tests.conformance.scenario import ENGINE, SCENARIOS, STAGE, Step
from tests.conformance.test_traces import DIFFERENCES, judge

DEAD_LETTERS = [name for name, scenario in SCENARIOS.items() if any(s.op == "dlq" for s in scenario.steps)]
WRITER = "postgres, with dead letters on a broker"


def told(result: Result) -> str:
    """Both results, to compare by eye."""
    return f"\n  broker {json.dumps(result.broker)}\n  ours   {json.dumps(result.ours)}"


def problem_of(name: str, number: int, step: Step, result: Result) -> tuple[str | None, str]:
    """What is wrong with a result, and what it counts as."""
    if step.room == ENGINE:
        problem = judge(name, number, result, DIFFERENCES.get((name, number)))
        return problem, "equal" if result.lines == frozenset() else "listed"
    if (name, number) != MARKER:
        equal = result.broker == result.ours
        return None if equal else f"{name} step {number}: other dead letters{told(result)}", "equal"
    expected = json.loads(json.dumps(result.broker))
    expected["records"][2] |= {"key": None, "value": None}
    equal = result.ours == expected
    return None if equal else f"{name} step {number}: the marker's letter{told(result)}", "listed"


@pytest.mark.rule("R-DL-2", "R-DL-5", "R-DL-6", "R-DL-7", "R-DL-8")
@pytest.mark.parametrize("name", DEAD_LETTERS)
def test_the_recorded_dead_letters_are_ours(
    name: str,
    settings: Settings,
    conformance_counts: dict[str, Counter[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Partition, key, value, Kafka's headers in order, CreateTime of the write, the topic that is made: as recorded;
    and the state around them differs under the same lines as without a broker."""
    assert PostgresEngine.shared is not None
    # The test's broker creates dead-letter topics; that of most recordings did not.
    monkeypatch.setattr(TopicKeeper, "_broker_creates", lambda keeper: False)
    counts = conformance_counts.setdefault(WRITER, Counter())
    wrong = []
    with BrokerReplay(SCENARIOS[name], settings, PostgresEngine.shared) as replay:
        for number, (step, result) in enumerate(replay.run()):
            if result is None:
                counts["stage" if step.room == STAGE else f"elsewhere {step.room}"] += 1
                continue
            problem, kind = problem_of(name, number, step, result)
            verdict = "unexplained" if problem else kind
            counts.update((verdict, f"room {step.room}: {verdict}"))
            listed = DIFFERENCES.get((name, number))
            lines = {25} if (name, number) == MARKER else listed.lines if listed else set()
            counts.update(f"line {line}" for line in lines)
            wrong += [problem] if problem else []
        assert replay.engine.verify() == []
    assert not wrong, "\n".join(wrong)


def test_every_recorded_dead_letter_scenario_is_replayed() -> None:
    """None was dropped on the way: 18 were recorded."""
    assert len(DEAD_LETTERS) == 18
