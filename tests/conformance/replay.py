"""Replay a recorded scenario on an engine, step by step.

The engine goes through all steps with its own state, whatever it returned before; nothing is taken over from
the broker but what an engine is given anyway: the offsets of the log, state epochs, and the order of partitions
within a fetch. `compare` judges the results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sharequeue.domain.errors import GroupIdNotFound, ShareError
from tests.conformance import client
from tests.conformance.compare import explain_offsets, explain_state, explain_unwritten, fold, state_of
from tests.conformance.engines import fetch_with_acknowledgements
from tests.conformance.log import PartitionLog
from tests.conformance.scenario import CLIENT, ENGINE, Step
from tests.conformance.stage import Stage
from tests.oracle import AcknowledgementBatch, Acquired, SharePartition

LOOKS = {"state", "stateLog", "describeOffsets", "wireOffsets"}
"""Steps that change nothing."""
TYPES = {"gap": 0, "accept": 1, "release": 2, "reject": 3, "renew": 4}


@dataclass(frozen=True, slots=True)
class Result:
    """A step's two results in the same words, and the lines that explain why they differ: empty when equal,
    None when nothing in the results themselves explains it."""

    broker: Any
    ours: Any
    lines: frozenset[int] | None


class Replay(Stage):
    """One scenario on one engine."""

    compares = frozenset((ENGINE,))
    """Whose steps are compared; the others are carried out."""

    def run(self) -> list[tuple[Step, Result | None]]:
        """Every step in order, with its results if it is one that is compared."""
        done: list[tuple[Step, Result | None]] = []
        for index, step in enumerate(self.scenario.steps):
            self.index = index
            if step.op not in LOOKS:
                self.views.clear()
            self._observe()
            done.append((step, self.carry_out(step)))
        return done

    def _observe(self) -> None:
        """Have the engine see where the logs end, where that is not what it saw last."""
        before, self.observed = self.observed, {at: self._ends(at) for at in self._initialized()}
        for at, ends in self.observed.items():
            if before.get(at) != ends:
                self.engine.observe(at, ends)

    def carry_out(self, step: Step) -> Result | None:
        """Carry a step out; return its results if it is one that is compared."""
        name = re.sub("([A-Z])", r"_\1", step.op).lower()
        room = step.room.replace(" ", "_")
        act = getattr(self, f"_{room}_{name}", None) or getattr(self, f"_do_{name}", None)
        result: Result | None = act(step) if act is not None else None
        if step.room == CLIENT:
            result = judged(*client.carry_out(self, step))
        return result if step.room in self.compares else None

    def _engine_poll(self, step: Step) -> Result:
        do, got, member = step.do, step.got, step.do["member"]
        group_id = self._group(step)
        acks = self._acks(group_id, do.get("acks", []))
        renews = any(TYPES["renew"] in run.types for runs in acks.values() for run in runs)
        left = do.get("max", 0)
        waits = do.get("waitMs", 0) if renews else 0
        session = self._polled_partitions(member, group_id, step)
        self.session[member] = session
        ranges: list[list[Any]] = []
        ours: dict[str, Any] = {"error": "NONE"}
        ack_errors: dict[str, str] = {}
        errors: dict[str, str] = {}
        self.polled[member] = []
        for at in session:
            fetch = self.fetch_of(
                at,
                max(0, left),
                do.get("mode", "batch_optimized"),
                do.get("batchSize") or max(1, do.get("max", 0)),
            )
            try:
                if at in self.pending:
                    self.engine.initialize(at, self._ends(at), self._epoch(at))
                    self.pending.discard(at)
                    self.engine.observe(at, self._ends(at))
                if at in acks:
                    refusal, acquired = fetch_with_acknowledgements(
                        self.engine, at, member, acks[at], self.epochs.get((member, at)), waits, fetch
                    )
                    ack_errors[str(at)] = "NONE" if refusal is None else refusal.name
                else:
                    acquired = self.engine.acquire(at, member, fetch)
            except ShareError as error:
                if error.name == "INVALID_REQUEST":
                    ours = {"error": error.name}
                    break
                errors[str(at)] = error.name
                continue
            left -= acquired.counted
            self._remember(member, at, acquired, ranges)
        if ours["error"] == "NONE":
            ours |= {"acquired": sorted(ranges), "gaps": self._gaps(group_id, ranges)}
            ours |= {"partitionErrors": errors, "ackErrors": ack_errors}
        broker: dict[str, Any] = {"error": got["error"]}
        if got["error"] == "NONE":
            broker |= {"acquired": sorted(got["acquired"]), "gaps": _offsets(got.get("gaps", []))}
            for kind in ("partitionErrors", "ackErrors"):
                broker[kind] = {name: told["error"] for name, told in got.get(kind, {}).items()}
        return judged(broker, ours)

    def _polled_partitions(self, member: str, group_id: str, step: Step) -> list[SharePartition]:
        """The partitions of a fetch, those the broker served first in its order."""
        if "partitions" in step.do:
            asked = [("t", p) if isinstance(p, int) else (p[0], p[1]) for p in step.do["partitions"]]
        else:
            asked = self.assigned.get(member, [("t", 0)])
        served = [(topic, partition) for topic, partition, *_ in step.got.get("acquired", [])]
        ordered = [*dict.fromkeys(name for name in served if name in asked), *asked]
        return [SharePartition(group_id, *name) for name in dict.fromkeys(ordered)]

    def _remember(self, member: str, at: SharePartition, acquired: Acquired, ranges: list[list[Any]]) -> None:
        for run in acquired.ranges:
            ranges.append([at.topic, at.partition, run.first, run.last, run.delivery_count])
            self.polled[member].append((at, run.first, run.last))
        if acquired.ranges:
            self.epochs[member, at] = acquired.state_epoch
            self.locked_at = self.now

    def _gaps(self, group_id: str, ranges: list[list[Any]]) -> list[list[Any]]:
        return [
            [topic, partition, offset, count]
            for topic, partition, first, last, count in sorted(ranges)
            for offset in range(first, last + 1)
            if offset not in self.logs[topic, partition].data
        ]

    def _engine_ack(self, step: Step) -> Result:
        do, got = step.do, step.got
        acks = self._acks(self._group(step), do["acks"])
        results = {
            str(at): self._acknowledge(do["member"], at, runs, do.get("renew", True))
            for at, runs in acks.items()
        }
        ours: dict[str, Any] = {"error": "NONE", "partitions": results}
        told = got.get("partitions", {})
        if any(
            at.topic.startswith("?") for at in acks
        ):  # an id that no topic has; here a topic goes by its name
            told = dict(zip(map(str, acks), told.values(), strict=True))
        broker = {"error": got["error"], "partitions": told}
        if "acquisitionLockTimeoutMs" in got:
            broker["acquisitionLockTimeoutMs"] = got["acquisitionLockTimeoutMs"]
            ours["acquisitionLockTimeoutMs"] = self.engine.lock_duration_ms(self._group(step))
            self.locked_at = self.now
        return judged(broker, ours)

    def _engine_release_all(self, step: Step) -> Result:
        member = step.do["member"]
        held = self.polled.get(member, [])
        results: dict[str, str] = {}
        for at in dict.fromkeys(name for name, _, _ in held):
            runs = [AcknowledgementBatch.of(f, last, TYPES["release"]) for n, f, last in held if n == at]
            results[str(at)] = self._acknowledge(member, at, runs, True)
        ours: dict[str, Any] = {"error": "NONE", "partitions": results}
        if not held:
            ours = {"error": "NOTHING_HELD"}
        return judged({name: step.got[name] for name in ours if name in step.got}, ours)

    def _engine_close(self, step: Step) -> Result:
        results = self._end_session(step)
        self.leave(step.do["member"], self._group(step))
        return judged(step.got["session"]["partitions"], results)

    def _end_session(self, step: Step) -> dict[str, str]:
        """What a member has to acknowledge, and then the release of what it holds; return the errors' names."""
        member, group_id = step.do["member"], self._group(step)
        acks = self._acks(group_id, step.do.get("acks", []))
        results = {str(at): self._acknowledge(member, at, runs, True) for at, runs in acks.items()}
        self.engine.release_member(group_id, member, self.session.pop(member, []))
        self.epochs = {key: epoch for key, epoch in self.epochs.items() if key[0] != member}
        return results

    def _acknowledge(
        self, member: str, at: SharePartition, runs: Sequence[AcknowledgementBatch], renew: bool
    ) -> str:
        try:
            self.engine.acknowledge(at, member, runs, self.epochs.get((member, at)), renew)
        except ShareError as error:
            return error.name
        return "NONE"

    def _acks(
        self, group_id: str, acks: Sequence[Sequence[Any]]
    ) -> dict[SharePartition, list[AcknowledgementBatch]]:
        found: dict[SharePartition, list[AcknowledgementBatch]] = {}
        for ack in acks:
            topic, partition, first, last, kinds = ack if len(ack) == 5 else ("t", *ack)
            types = kinds if isinstance(kinds, list) else [kinds]
            numbers = tuple(TYPES[kind] if isinstance(kind, str) else kind for kind in types)
            run = AcknowledgementBatch(first, last, numbers)
            found.setdefault(SharePartition(group_id, topic, partition), []).append(run)
        return found

    def _look(self) -> None:
        """Settle what has lapsed, once for looks that follow each other."""
        if not self.views:
            self.engine.sweep()

    def _engine_state(self, step: Step) -> Result:
        self._look()
        broker, ours, lines = {}, {}, set[int]()
        explained = True
        for name, told in step.got.items():
            at = self._named(step, name)
            broker[name] = {k: told[k] for k in _STATE if k in told}
            ours[name] = state_of(self._view(at))
            log = self.logs[at.topic, at.partition]
            why = explain_state(broker[name], ours[name], log.aborted, log.start)
            explained &= why is not None
            lines |= why or set()
        return Result(broker, ours, frozenset(lines) if explained else None)

    def _engine_state_log(self, step: Step) -> Result:
        self._look()
        at = SharePartition(step.do.get("group", "g"), step.do.get("topic", "t"), step.do.get("partition", 0))
        broker = fold(step.got["log"]) or {"startOffset": -1, "deliveryCompleteCount": -1, "batches": []}
        ours = state_of(self._view(at))
        log = self.logs[at.topic, at.partition]
        why = explain_state(broker, ours, log.aborted, log.start)
        return Result(broker, ours, None if why is None else frozenset(why))

    def _engine_describe_offsets(self, step: Step) -> Result:
        self._look()
        decorated = step.op == "describeOffsets"
        told = step.got.get("partitions", {})
        broker, ours, lines = {}, {}, set[int]()
        explained = True
        if not told:
            # All share-partitions of the group were asked for: none is known to the broker.
            known = self.engine.share_partitions(step.do.get("group", "g"))
            return judged([], [str(at) for at in known])
        for name, figures in told.items():
            at = self._named(step, name)
            view = self._view(at)
            broker[name] = None if figures is None else {k: figures[k] for k in ("startOffset", "lag")}
            ours[name] = None if view is None else {"startOffset": view.spso, "lag": view.lag}
            log = self.logs.get((at.topic, at.partition), PartitionLog())
            why = explain_offsets(broker[name], ours[name], decorated=decorated)
            if why is None and view is not None:
                why = explain_unwritten(broker[name], view, log.aborted, log.start)
            explained &= why is not None
            lines |= why or set()
        return Result(broker, ours, frozenset(lines) if explained else None)

    _engine_wire_offsets = _engine_describe_offsets

    def _engine_alter_offsets(self, step: Step) -> Result:
        group_id = step.do.get("group", "g")
        offsets = {(topic, partition): offset for topic, partition, offset in step.do["offsets"]}
        epoch = max(self._epoch(SharePartition(group_id, t, p), default=1) for t, p in offsets)
        return judged(step.got["partitions"], self._alter(group_id, offsets, epoch))

    def _engine_delete_offsets(self, step: Step) -> Result:
        try:
            results = self.engine.delete_offsets(step.do.get("group", "g"), step.do["topics"])
            ours = {topic: "NONE" if error is None else error.name for topic, error in results.items()}
        except ShareError as error:
            ours = dict.fromkeys(step.do["topics"], error.name)
        return judged({topic: told["error"] for topic, told in step.got["topics"].items()}, ours)

    def _engine_delete_group(self, step: Step) -> Result:
        error = "NONE"
        try:
            self.engine.delete_group(step.do.get("group", "g"))
        except ShareError as refusal:
            error = refusal.name
        return judged(step.got["error"], error)

    def _engine_describe_group(self, step: Step) -> Result:
        """Whether the group exists and is empty; epochs and assignments are the coordinator's."""
        try:
            members = self.engine.members(step.do.get("group", "g"))
        except GroupIdNotFound as error:
            return judged([step.got["error"], step.got.get("state")], [error.name, None])
        return judged([step.got["error"], step.got.get("state")], ["NONE", "Stable" if members else "Empty"])


_STATE = ("startOffset", "deliveryCompleteCount", "stateEpoch", "batches")


def judged(broker: Any, ours: Any) -> Result:
    """Both results of a step where only equal is explained by itself."""
    return Result(broker, ours, frozenset() if broker == ours else None)


def _offsets(runs: Sequence[list[Any]]) -> list[list[Any]]:
    return [[t, p, o, count] for t, p, first, last, count in sorted(runs) for o in range(first, last + 1)]
