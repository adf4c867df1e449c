"""The recorded steps of an ordinary client, made with `sharequeue.ShareConsumer` on a real broker.

`test_traces.py` compares the operations that a client makes of them, on every engine; here the consumer itself joins,
polls, acknowledges, commits and closes, and the state behind it is compared after its steps.
"""

from __future__ import annotations

from collections import Counter

import pytest

from sharequeue.domain.settings import Settings
from tests.conformance.consumer_replay import ConsumerReplay
from tests.conformance.postgres_engine import PostgresEngine
from tests.conformance.scenario import CLIENT, SCENARIOS
from tests.conformance.test_traces import DIFFERENCES, judge

CLIENTS = [name for name, scenario in SCENARIOS.items() if any(s.room == CLIENT for s in scenario.steps)]


@pytest.mark.parametrize("name", CLIENTS)
def test_the_consumer_does_what_the_recorded_one_did(
    name: str, settings: Settings, conformance_counts: dict[str, Counter[str]]
) -> None:
    """Records, delivery counts, refusals, results of commits and callbacks; and the state after each."""
    assert PostgresEngine.shared is not None
    counts = conformance_counts.setdefault("postgres, with the consumer", Counter())
    wrong = []
    with ConsumerReplay(SCENARIOS[name], settings, PostgresEngine.shared) as replay:
        for number, (step, result) in enumerate(replay.run()):
            if result is None:
                continue
            listed = DIFFERENCES.get((name, number))
            problem = judge(name, number, result, listed)
            verdict = "unexplained" if problem else "listed" if listed else "equal"
            counts.update((verdict, f"room {step.room}: {verdict}"))
            wrong += [problem] if problem else []
        assert replay.engine.verify() == []
        assert replay.called == replay.told  # when a callback comes is not promised
    assert not wrong, "\n".join(wrong)
