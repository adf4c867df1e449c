"""Kafka's own Java clients on a broker's share groups, and ours on ours: same log, same steps, compared after each.

Ours are the steps of a client on the state, on every engine, and `sharequeue.ShareConsumer` itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

from sharequeue.domain.settings import Settings
from sharequeue.local.stack import StackInfo
from tests.conformance.consumer_replay import ConsumerReplay
from tests.conformance.live import on_the_broker, problems, unexplained, warm_up
from tests.conformance.live_java import JavaBroker, JavaClients
from tests.conformance.live_java_scenarios import JAVA
from tests.conformance.postgres_engine import PostgresEngine
from tests.conformance.scenario import Scenario
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.deep  # a JVM with Kafka's clients takes seconds of a core


@pytest.fixture(scope="module")
def java_runs(stack: StackInfo, kafka_jvm: JavaGateway) -> Iterator[dict[str, Future[Scenario]]]:
    """Every scenario on the broker, side by side."""
    settings = Settings.load(stack.home)
    warm_up(settings)
    stage = partial(JavaBroker, clients=JavaClients(kafka_jvm, settings.bootstrap_servers))
    with ThreadPoolExecutor(len(JAVA)) as executor:
        yield {
            name: executor.submit(on_the_broker, settings, name, live, stage) for name, live in JAVA.items()
        }


@pytest.mark.parametrize("name", JAVA)
def test_kafkas_java_clients_and_ours_do_the_same(
    name: str, java_runs: dict[str, Future[Scenario]], live_counts: dict[str, Counter[str]]
) -> None:
    """Records, delivery counts, refusals, results of commits, callbacks, offsets and what operators are told."""
    found = problems(java_runs[name].result(PATIENCE_S), live_counts)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", JAVA)
def test_our_consumer_does_what_kafkas_does(
    name: str,
    java_runs: dict[str, Future[Scenario]],
    settings: Settings,
    conformance_counts: dict[str, Counter[str]],
) -> None:
    """The same steps by `sharequeue.ShareConsumer`, on a log of its own."""
    assert PostgresEngine.shared is not None
    counts = conformance_counts.setdefault("postgres, with the consumer, beside a broker", Counter())
    scenario = java_runs[name].result(PATIENCE_S)
    with ConsumerReplay(scenario, settings, PostgresEngine.shared) as replay:
        found = unexplained(scenario, replay, "the consumer", counts)
        assert replay.called == replay.told  # when a callback comes is not promised
    assert not found, "\n".join(found)
