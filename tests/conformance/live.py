"""Run a scenario on the broker and on ours, and compare them step by step.

The broker first: what each step returns there makes a scenario like the recorded ones. The replays then go through
it with our engines, on the same log, and judge each step: it is equal, or falls under a line of the table of
differences.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from sharequeue.domain.settings import Settings
from tests.conformance.engines import InMemoryEngine
from tests.conformance.live_broker import LiveBroker
from tests.conformance.live_counts import has_counts, miscounted
from tests.conformance.live_members import TooBusy
from tests.conformance.live_steps import LOOKED_AT_AFTER, Live, join, poll, produce, release
from tests.conformance.replay import Replay, Result
from tests.conformance.scenario import Scenario, Step
from tests.conformance.service_replay import ServiceReplay

ENGINES: dict[str, Callable[[Scenario], Replay]] = {
    "in memory": lambda scenario: Replay(scenario, InMemoryEngine()),
    "postgres": ServiceReplay,
}
ATTEMPTS = 10
EARLIEST = {"share.auto.offset.reset": "earliest"}


def warm_up(settings: Settings) -> None:
    """Have the broker make its state topic. Until it has, a first fetch may acquire records and return none."""
    with LiveBroker(settings, {"t": 1}, {"g": EARLIEST}, {}) as broker:
        for do in (produce(1), join(), poll(waitMs=2000), release()):
            broker.carry_out(do)


def on_the_broker(
    settings: Settings, name: str, live: Live, stage: Callable[..., LiveBroker] = LiveBroker
) -> Scenario:
    """Run a scenario on the broker; return it as a recorded one."""
    groups = {"g": {**EARLIEST, **live.configs}}

    def run() -> Scenario:
        steps: list[Step] = []
        with stage(settings, live.topics, groups, {"t": live.log}) as broker:
            for do in live.steps:
                steps += did(broker, do)
        return Scenario(name, dict(live.topics), groups, tuple(steps))

    return until_it_fits(run)


def until_it_fits(run: Callable[[], Scenario]) -> Scenario:
    """Run a scenario, and anew on topics of its own where the machine was too busy for it."""
    for _ in range(ATTEMPTS - 1):
        with suppress(TooBusy):
            return run()
    return run()


def did(broker: LiveBroker, do: Mapping[str, Any]) -> list[Step]:
    """One step on the broker, and a look at the offsets and the state after it."""
    steps = [Step(dict(do), broker.carry_out(dict(do)), do.get("stable", True))]
    if do["op"] in LOOKED_AT_AFTER:
        steps += [Step(look, broker.carry_out(look)) for look in ({"op": "wireOffsets"}, {"op": "state"})]
    return steps


def problems(scenario: Scenario, counts: Mapping[str, Counter[str]]) -> list[str]:
    """What is not explained in a scenario, on every engine; the steps are counted."""
    found = []
    for engine, replay_of in ENGINES.items():
        found += unexplained(scenario, replay_of(scenario), engine, counts[engine])
    return found


def unexplained(scenario: Scenario, replay: Replay, engine: str, counts: Counter[str]) -> list[str]:
    """What is not explained in a scenario on one engine; the steps are counted, as `live_counts.json` has them."""
    found, seen = [], Counter[str]()
    for number, (step, result) in enumerate(replay.run()):
        if result is None:
            continue
        lines = lines_of(step, result)
        verdict = "unexplained" if lines is None else "listed" if lines else "equal"
        seen.update((verdict, f"room {step.room}: {verdict}", *(f"line {line}" for line in lines or ())))
        if lines is None:
            found.append(
                f"{scenario.name} step {number} on {engine}: {json.dumps(step.do)}"
                f"\n  broker {json.dumps(result.broker)}\n  ours   {json.dumps(result.ours)}"
            )
    counts.update(seen)
    found += [f"{scenario.name} on {engine}: {broken}" for broken in replay.engine.verify()]
    if not found and has_counts(scenario.name):
        found += miscounted(scenario.name, engine, seen)
    return found


def lines_of(step: Step, result: Result) -> frozenset[int] | None:
    """Under which lines a step differs: none when equal, None when no line says so."""
    if result.lines is not None:
        return result.lines
    return frozenset(step.do["lines"]) if "lines" in step.do else None
