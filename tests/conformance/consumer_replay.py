"""What `sharequeue.ShareConsumer` gets in a scenario of an ordinary client, step by step.

The consumer itself joins, polls, acknowledges, commits and closes, on the scenario's log on the test's broker; the
state behind it is compared as in every replay.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import IllegalStateException, KafkaException, TopicPartition

from sharequeue import AcknowledgeType, ShareConsumer
from tests.conformance.broker_stage import BrokerReplay
from tests.conformance.replay import LOOKS, Result, judged
from tests.conformance.scenario import CLIENT, ENGINE, Step
from tests.waiting import PATIENCE_S


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
            result = super().carry_out(step)
            # A poll does not wait for what it acknowledges.
            deadline = time.monotonic() + PATIENCE_S
            while step.op in LOOKS and result and result.lines is None and time.monotonic() < deadline:
                time.sleep(0.02)
                self.views.clear()
                result = super().carry_out(step)
            return result
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
            messages = consumer.poll(step.do.get("timeoutMs", PATIENCE_S * 1000) / 1000)
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
