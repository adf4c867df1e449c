"""The recorded steps of an ordinary client, made with `sharequeue.ShareConsumer` on a real broker.

`test_traces.py` compares the operations that a client makes of them, on every engine; here the consumer itself joins,
polls, acknowledges, commits and closes, and the state behind it is compared after its steps.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from confluent_kafka import IllegalStateException, KafkaException, TopicPartition

from sharequeue import AcknowledgeType, ShareConsumer
from sharequeue.settings import Settings
from tests.conformance.broker_stage import BrokerReplay
from tests.conformance.postgres_engine import PostgresEngine
from tests.conformance.replay import Result, judged
from tests.conformance.scenario import CLIENT, ENGINE, SCENARIOS, Step
from tests.conformance.test_traces import DIFFERENCES, judge

CLIENTS = [name for name, scenario in SCENARIOS.items() if any(s.room == CLIENT for s in scenario.steps)]
LONGEST_S = 10.0


class ConsumerReplay(BrokerReplay):
    """One scenario with the consumer at work."""

    compares = frozenset((ENGINE, CLIENT))

    def __enter__(self) -> ConsumerReplay:
        self.consumers: dict[str, ShareConsumer] = {}
        self.called: list[str] = []
        self.told: list[str] = []
        return self

    def __exit__(self, *raised: object) -> None:
        for consumer in self.consumers.values():
            consumer.close()
        super().__exit__(*raised)

    def carry_out(self, step: Step) -> Result | None:
        if step.room != CLIENT:
            return super().carry_out(step)
        self.told += step.got.get("callbacks", [])
        broker = {n: of for n, of in step.got.items() if n not in ("exception", "message", "callbacks")}
        if step.op == "cack":
            broker = {"acks": [told.partition(":")[0] for told in step.got["acks"]]}
        ours: dict[str, Any] = getattr(self, f"_{step.op}")(step)
        return judged(broker, ours)

    def _cjoin(self, step: Step) -> dict[str, Any]:
        do = step.do
        self.join(do["member"], "g", ["t"])
        url = self.database.engine.url.render_as_string(hide_password=False)
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.settings.bootstrap_servers,
                "sharequeue.database.url": url,
                "group.id": "g",
                "share.acknowledgement.mode": do.get("mode", "implicit"),
                "share.acquire.mode": do.get("acquire", "batch_optimized"),
                "max.poll.records": do.get("max", 500),
            }
        )
        consumer.set_acknowledgement_commit_callback(self._note)
        consumer.subscribe(["t"])
        self.consumers[do["member"]] = consumer
        return {"error": "NONE"}

    def _note(self, offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        name = "NONE" if error is None else error.args[0].name()
        self.called += [f"{at.topic}-{at.partition} {sorted(of)} {name}" for at, of in offsets.items()]

    def _cpoll(self, step: Step) -> dict[str, Any]:
        consumer = self.consumers[step.do["member"]]
        try:
            messages = consumer.poll(step.do.get("timeoutMs", LONGEST_S * 1000) / 1000)
        except IllegalStateException:
            return {"error": "IllegalStateException"}
        records = [[m.topic(), m.partition(), m.offset(), m.delivery_count()] for m in messages]
        return {"error": "NONE", "records": records}

    def _cack(self, step: Step) -> dict[str, Any]:
        consumer, results = self.consumers[step.do["member"]], []
        for partition, offset, kind in step.do["acks"]:
            try:
                consumer.acknowledge_offset("t", partition, offset, AcknowledgeType[kind.upper()])
                results.append("NONE")
            except IllegalStateException:
                results.append("IllegalStateException")
        return {"acks": results}

    def _ccommit(self, step: Step) -> dict[str, Any]:
        results = self.consumers[step.do["member"]].commit_sync()
        told = {
            f"{at.topic}-{at.partition}": "NONE" if error is None else error.args[0].name()
            for at, error in results.items()
        }
        return {"error": "NONE", "partitions": told}

    def _cclose(self, step: Step) -> dict[str, Any]:
        self.consumers.pop(step.do["member"]).close()
        self.leave(step.do["member"], "g")
        return {"error": "NONE"}


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
