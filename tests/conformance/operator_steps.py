"""Operators' steps on both engines at once: release, pause, move on.

Runs that end or are cancelled give everything back; a person pauses, resumes, moves records by hand, extends locks,
fences everybody. Some of it is asked wrongly on purpose.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sharequeue.domain.errors import error_for
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import SharePartition
from tests.conformance.history import LIMIT, REFUND, History, Where
from tests.conformance.sql_side import place
from tests.oracle import RecordState

UNKNOWN_GROUP = "nobody"


class OperatorSteps:
    """The operators' part of a history."""

    def __init__(self, history: History) -> None:
        self.history, self.random, self.tally = history, history.random, history.tally
        self.memory, self.sql = history.memory, history.sql

    def release(self) -> None:
        """All that a member holds, or one lease, goes back without an acknowledgement; the run was cancelled, or
        not."""
        lease = self.history.lease(None) if self.random.random() < 0.5 else None
        group = lease.at.group_id if lease else self.history.at().group_id
        member = lease.member if lease else self.history.member()
        cancelled, refund = self.random.random() < 0.7, self.random.random() < 0.2

        def memory() -> object:
            if lease:
                return self.memory.release_lease(lease.lease, cancelled=cancelled, refund=refund)
            return self.memory.release_member(group, member, cancelled=cancelled, refund=refund)

        self.history.settle()
        token = lease.token if lease else None
        released = self.history.both(
            "cancel" if cancelled else "release",
            memory,
            lambda: self.sql.call("release", group, member, token, cancelled, refund)[0]["released"],
            lease,
            member,
        )
        if released and (refund or (cancelled and self.memory.config(group, REFUND) == "true")):
            self.tally.met["a refund"] += 1

    def pause(self) -> None:
        """Leasing from a group, a topic or a share-partition is paused; or resumed, also where it is not paused."""
        at, roll = self.history.at(), self.random.random()
        group, topic, partition = place(at)
        where: Where = self.random.choice(
            ((group, None, None), (group, topic, None), (group, topic, partition), (group, topic, partition))
        )
        reason: str | None = f"closed at {self.history.seconds}"
        if roll < 0.3:
            reason = None
        elif roll < 0.33:
            reason = ""
        elif roll < 0.36:
            where = (group, None, partition)
        elif roll < 0.4:
            where = (group, topic, 7)
        elif roll < 0.5:
            where = (UNKNOWN_GROUP, topic, None)
        self._pause(reason, where)

    def resume_some(self) -> None:
        """No pause lasts for long."""
        for where in [where for where in self.history.paused if self.random.random() < 0.5]:
            self.history.paused.remove(where)
            self._pause(None, where)

    def _pause(self, reason: str | None, where: Where) -> None:
        group, topic, partition = where
        done = self.history.both(
            "resume" if reason is None else "pause",
            lambda: self.memory.pause(group, reason, topic, partition),
            lambda: self.sql.call("pause", group, reason, topic, partition)[0]["paused"],
            reason,
            where,
        )
        if reason and not isinstance(done, str):
            self.history.paused.append(where)

    def force(self) -> None:
        """Chosen offsets are released or made dead letters, whoever holds them, or one asks what would happen."""
        # Rare by chance, and what they are for: a probe, and what is on its last delivery.
        rare = {
            each: found
            for each in self.history.there()
            if (found := self._probe(each) or self._last_deliveries(each))
        }
        at = self.random.choice(list(rare)) if rare and self.random.random() < 0.5 else self.history.at()
        execute, offsets = self.random.random() < 0.7, EMPTY
        spso = self.memory.share_partition(at).spso if at in self.history.there() else 0
        chosen = rare.get(at)
        if chosen and self.random.random() < 0.5:
            offsets = OffsetSet.from_offsets(chosen)
        elif self.random.random() < 0.95:
            for _ in range(self.random.randint(1, 2)):
                first = max(0, spso + self.random.randint(-2, 14))
                offsets |= OffsetSet.of((first, first + self.random.randint(1, 4)))
        act = self.random.choice(("release", "release", "dead_letter"))
        force = self.memory.force_release if act == "release" else self.memory.force_dead_letter

        def memory() -> object:
            runs = force(at, offsets, execute=execute)
            told = [
                (run.act, run.state, run.delivery_count, run.member_id, run.reason, str(run.offsets))
                for run in runs
            ]
            return sorted(told, key=repr)

        def sql() -> object:
            together: dict[tuple[object, ...], OffsetSet] = {}
            for row in self.sql.call("force", *place(at), str(offsets), act, execute):
                if row["error_code"]:
                    return error_for(row["error_code"], row["error_message"]).name
                key = tuple(row[name] for name in ("act", "state", "delivery_count", "member_id", "reason"))
                together[key] = together.get(key, EMPTY) | OffsetSet.parse(row["offsets"])
            return sorted(((*key, str(found)) for key, found in together.items()), key=repr)

        self.history.both(f"force {act.replace('_', ' ')}", memory, sql, at, offsets, execute)

    def _probe(self, at: SharePartition) -> Collection[int]:
        """What a probing circuit has leased."""
        circuit = self.memory.share_partition(at).circuit
        return circuit.probe if circuit and circuit.state == "probing" else ()

    def _last_deliveries(self, at: SharePartition) -> Collection[int]:
        """What is held for the last time."""
        limit = int(self.memory.config(at.group_id, LIMIT))
        records = self.memory.share_partition(at).records
        return [
            offset
            for offset, record in records.items()
            if record.state is RecordState.ACQUIRED and record.delivery_count >= limit
        ]

    def extend_locks(self) -> None:
        """All locks last longer; or, as after a restore, every holder is fenced."""
        if self.random.random() < 0.85:
            amount = timedelta(seconds=self.random.choice((1, 7, 20)))
            self.history.both(
                "extend locks",
                lambda: self.memory.extend_locks(amount),
                lambda: self.sql.call("extend", amount)[0]["extended"],
                amount,
            )
        else:
            self.history.both(
                "raise epochs",
                self.memory.raise_state_epochs,
                lambda: self.sql.call("raise_epochs")[0]["raised"],
            )
