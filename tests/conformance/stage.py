"""What is around the engine while a scenario is replayed.

The log, the clock, the members and their sessions, the groups' configurations: steps that change them are
carried out here, and so is what other parts of the project would do to the state. Nothing is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sharequeue.domain.errors import GroupIdNotFound, OffsetNotAvailable, ShareError, UnknownTopicOrPartition
from tests.conformance import client
from tests.conformance.engines import Engine, FetchOf, LogEnds
from tests.conformance.log import PartitionLog
from tests.conformance.scenario import Scenario, Step
from tests.oracle import AcquireMode, Description, SharePartition

DEFAULTS = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": 30000,
    "share.delivery.count.limit": 5,
    "share.partition.max.record.locks": 2000,
}
"""What a scenario's groups have unless it says otherwise."""
DEFAULT_RESET = str(DEFAULTS["share.auto.offset.reset"])


class Stage:
    """One scenario around one engine, as far as it has got."""

    def __init__(self, scenario: Scenario, engine: Engine) -> None:
        self.scenario = scenario
        self.engine = engine
        self.now = 0.0
        self.locked_at = 0.0
        self.index = 0
        self.partitions = dict(scenario.topics)
        self.logs = {(t, p): PartitionLog() for t, n in self.partitions.items() for p in range(n)}
        self.group_of: dict[str, str] = {}
        self.assigned: dict[str, list[tuple[str, int]]] = {}
        self.session: dict[str, list[SharePartition]] = {}
        self.epochs: dict[tuple[str, SharePartition], int] = {}
        self.polled: dict[str, list[tuple[SharePartition, int, int]]] = {}
        self.pending: set[SharePartition] = set()
        self.observed: dict[SharePartition, LogEnds] = {}
        self.views: dict[SharePartition, Description | None] = {}
        """How share-partitions were seen by the looks since the last step that changes something."""
        self.clients: dict[str, client.Client] = {}
        self.resets: dict[str, str] = {}
        for group_id, configs in scenario.groups.items():
            self._configure(group_id, {**DEFAULTS, **configs})

    def _do_produce(self, step: Step) -> None:
        log = self.logs[step.do.get("topic", "t"), step.do.get("partition", 0)]
        for first, last in step.got["batches"]:
            log.produce(first, last, self.now - step.do.get("agoMs", 0) / 1000, step.do.get("txn"))

    def _do_txn(self, step: Step) -> None:
        if step.do["do"] != "begin":
            for log in self.logs.values():
                log.finish(step.do["txn"], step.do["do"] == "commit")

    def _do_delete_records(self, step: Step) -> None:
        self.logs[step.do.get("topic", "t"), step.do.get("partition", 0)].delete_before(step.do["before"])

    def _do_wait_compacted(self, step: Step) -> None:
        self.logs["t", 0].compact(step.got["offsetsLeft"])

    def _do_create_partitions(self, step: Step) -> None:
        topic = step.do.get("topic", "t")
        known = {at.group_id for at in self._initialized() if at.topic == topic}
        for partition in range(self.partitions[topic], step.do["total"]):
            self.logs[topic, partition] = PartitionLog()
            for group_id in known:
                at = SharePartition(group_id, topic, partition)
                self.engine.initialize_at(at, 0, self._epoch(at))
        self.partitions[topic] = step.do["total"]

    def _do_create_topic(self, step: Step) -> None:
        self.partitions[step.do["topic"]] = partitions = int(step.do.get("partitions", 1))
        self.logs |= {(step.do["topic"], partition): PartitionLog() for partition in range(partitions)}

    def _do_delete_topic(self, step: Step) -> None:
        self.engine.delete_topic(step.do["topic"])
        self.partitions.pop(step.do["topic"], None)

    def _do_group_config(self, step: Step) -> None:
        self._configure(step.do.get("group", "g"), step.do["configs"])

    def _configure(self, group_id: str, configs: dict[str, Any]) -> None:
        told = {n: str(v).lower() if isinstance(v, bool) else v for n, v in configs.items()}
        self.engine.configure(group_id, told)
        self.resets[group_id] = str(
            told.get("share.auto.offset.reset", self.resets.get(group_id, DEFAULT_RESET))
        )

    def _do_sleep(self, step: Step) -> None:
        self._advance(step.do["ms"] / 1000)

    def _do_expire(self, step: Step) -> None:
        group_id = step.do.get("group", "g")
        until = self.locked_at + self.engine.lock_duration_ms(group_id) / 1000 + 0.5
        self._advance(max(0.0, until - self.now))

    def _advance(self, seconds: float) -> None:
        self.now += seconds
        self.engine.advance(seconds)

    def _do_join(self, step: Step) -> None:
        member = step.do["member"]
        self.join(member, step.do.get("group", "g"), step.do.get("topics", ["t"]))
        self._assign(member, step.got.get("assignment"))

    def _do_hb(self, step: Step) -> None:
        member = step.do["member"]
        if step.got["error"] != "NONE":
            return
        if step.do.get("epoch") == -1:
            self._do_leave(step)
        elif step.do.get("epoch") == 0:
            self.join(member, step.do.get("group", "g"), step.do.get("topics", ["t"]))
        self._assign(member, step.got.get("assignment"))

    def _do_settle(self, step: Step) -> None:
        for member, assignment in step.got["assignment"].items():
            self._assign(member, assignment)

    def _assign(self, member: str, assignment: dict[str, list[int]] | None) -> None:
        if assignment is not None:
            self.assigned[member] = [(topic, p) for topic, ps in assignment.items() for p in ps]

    def join(self, member: str, group_id: str, topics: Sequence[str]) -> None:
        """A member is known, and so are the share-partitions of its topics."""
        self.group_of[member] = group_id
        if group_id not in self.scenario.groups and not self.engine.share_partitions(group_id):
            self._configure(group_id, DEFAULTS)
        self.engine.join(group_id, member)
        for topic in topics:
            for partition in range(self.partitions.get(topic, 0)):
                at = SharePartition(group_id, topic, partition)
                try:
                    self.engine.initialize(at, self._ends(at), self._epoch(at))
                except OffsetNotAvailable:
                    self.pending.add(at)

    def leave(self, member: str, group_id: str) -> str:
        """A member is no longer known; return the error's name."""
        self.engine.leave(group_id, member)
        return "NONE"

    def _do_leave(self, step: Step) -> None:
        self.leave(step.do["member"], self._group(step))

    def _do_drop(self, step: Step) -> None:
        member = step.do["member"]
        self.engine.release_member(self._group(step), member, self.session.pop(member, []))

    def _do_dlq(self, step: Step) -> None:
        if step.do.get("expect", 1) > 0:  # where nothing arrives, ours is held
            for at in self._initialized():
                self.engine.write_dead_letters(at)

    def _do_cli(self, step: Step) -> None:
        args, printed = step.do["args"], step.got["stdout"]
        if "--reset-offsets" in args and "--execute" in args and step.got["exit"] == 0:
            rows = [line.split() for line in printed if not line.startswith(("Warn", "GROUP"))]
            for group_id, topic, partition, offset in rows:
                at = SharePartition(group_id, topic, int(partition))
                self._alter(group_id, {(topic, int(partition)): int(offset)}, self._epoch(at))

    def _alter(self, group_id: str, offsets: dict[tuple[str, int], int], epoch: int) -> dict[str, str]:
        self.resets.setdefault(group_id, DEFAULT_RESET)
        try:
            results = self.engine.alter_offsets(group_id, offsets, epoch, self.partitions)
        except ShareError as error:
            return {f"{topic}-{partition}": error.name for topic, partition in offsets}
        return {f"{t}-{p}": "NONE" if error is None else error.name for (t, p), error in results.items()}

    def fetch_of(
        self, at: SharePartition, max_records: int, mode: AcquireMode, batch_size: int | None = None
    ) -> FetchOf:
        """A fetch of one share-partition, with the log as it is now."""
        log = self.logs[at.topic, at.partition]
        return FetchOf(max_records, mode, batch_size, list(log.batches), log.aborted_set(), log.start)

    def _group(self, step: Step) -> str:
        return str(step.do.get("group") or self.group_of.get(step.do["member"], "g"))

    def _ends(self, at: SharePartition) -> LogEnds:
        return self.logs[at.topic, at.partition].ends(self.now, self.resets.get(at.group_id, DEFAULT_RESET))

    def _initialized(self) -> list[SharePartition]:
        return [at for group_id in self.resets for at in self.engine.share_partitions(group_id)]

    def _named(self, step: Step, name: str) -> SharePartition:
        topic, _, partition = name.rpartition("-")
        return SharePartition(step.do.get("group", "g"), topic, int(partition))

    def _view(self, at: SharePartition) -> Description | None:
        if at not in self.views:
            self.views[at] = None
            with suppress(UnknownTopicOrPartition, GroupIdNotFound):
                self.views[at] = self.engine.describe(at)
        return self.views[at]

    def _epoch(self, at: SharePartition, default: int = 2) -> int:
        """The state epoch the broker gives this share-partition now: what the next look at it shows."""
        for step in self.scenario.steps[self.index + 1 :]:
            if step.op in ("alterOffsets", "deleteOffsets") or "--execute" in step.do.get("args", []):
                break
            shown = step.got.get(str(at)) if step.op == "state" else None
            if step.do.get("group", "g") == at.group_id and shown and "stateEpoch" in shown:
                return int(shown["stateEpoch"])
            if step.op == "stateLog" and step.do.get("group", "g") == at.group_id:
                epochs = [r["stateEpoch"] for r in step.got["log"] if "stateEpoch" in r]
                return int(epochs[-1]) if epochs else default
        return default
