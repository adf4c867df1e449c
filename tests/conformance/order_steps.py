"""Steps of those who know of order by key, on both engines at once.

A worker that obeys asks which keys are blocked right after its acquire, holds what must wait, and reports the keys of
what it does not accept: of all, or only where it must. No record that such a worker accepts has an earlier one of its
key that is open, unless another key was reported of that one: now and then a worker does so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import SharePartition
from tests.conformance.history import DID, ORDER, History, did, error, said
from tests.conformance.sql_side import json_of, place, refusal
from tests.conformance.tally import Different, Held
from tests.oracle import AcknowledgementBatch
from tests.oracle.order import OPEN, known_open
from tests.ordered import ACCEPT, GAP, HOLD, obey, reported

Keys = dict[UUID | None, OffsetSet]


@dataclass
class Learned:
    """What a worker knows of its lease: the keys that are blocked, from which offset on, and what it has done."""

    blocked: dict[UUID, int]
    before: dict[int, int] = field(default_factory=dict)


class OrderSteps:
    """Their part of a history."""

    def __init__(self, history: History) -> None:
        self.history, self.random, self.tally = history, history.random, history.tally
        self.memory, self.sql = history.memory, history.sql
        self.learned: dict[str, Learned] = {}
        self.asked: set[str] = set()

    def learn(self) -> None:
        """A worker that has just acquired asks which keys its lease must hold."""
        for lease in [held for held in self.history.leases if held.token not in self.asked]:
            self.asked.add(lease.token)
            self._learn(lease)

    def _learn(self, lease: Held) -> None:
        blocked = self.history.both(
            "blocked keys", lambda: self._in_memory(lease), lambda: self._in_postgres(lease), lease
        )
        if isinstance(blocked, dict):
            self.learned[lease.token] = Learned({key: first for key, (first, _) in blocked.items()})
            self.tally.met["a blocked key"] += bool(blocked)

    def _in_memory(self, lease: Held) -> object:
        return self.memory.blocked_keys(lease.at, lease.lease)

    def _in_postgres(self, lease: Held) -> object:
        rows = self.sql.call("blocked_keys", lease.at.group_id, lease.token)
        if not rows:
            return None
        row = rows[0]
        return {
            UUID(key): (first, self.sql.wait(until))
            for key, first, until in zip(row["keys"], row["first_offsets"], row["untils"], strict=True)
        }

    def acknowledge(self) -> None:
        """A worker acknowledges some of its lease, or all, as the rule wants it."""
        leases = [held for held in self.history.leases[-8:] if held.token in self.learned]
        if not leases:
            return
        lease = self.random.choice(leases)
        learned, key = self.learned[lease.token], self.history.key_of(lease.at)
        offsets = list(lease.lease.offsets.iter_offsets())
        wanted = dict(zip(offsets, self._wanted(len(offsets)), strict=True))
        chosen = {o: k for o, k in wanted.items() if k is not None}
        sent = obey(chosen, offsets, key, learned.blocked, learned.before)
        careless = self.random.random() < 0.2
        known = {o: k for o, k in sent.items() if k == HOLD or not careless or self.random.random() < 0.5}
        mistakes, other = self.history.mistakes(known)
        told = reported(known, lambda offset: other if offset in mistakes else key(offset))
        keys = {k: OffsetSet.from_offsets(found) for k, found in told.items()}
        early = self._overtaken(lease, sent)
        self.tally.met["a held record"] += HOLD in sent.values()
        self.tally.met["a key that nobody reports"] += any(
            k not in (ACCEPT, GAP) and o not in known for o, k in sent.items()
        )
        result = self._send(lease, sent, keys)
        if isinstance(result, str):
            return
        if early:
            raise Different(f"accepted before earlier ones of their keys: {early}; last: {self.history.last}")
        learned.before |= sent
        mistaken = self.history.mistaken.setdefault(lease.at, set())
        mistaken.difference_update(known)
        mistaken.update(mistakes)

    def _wanted(self, records: int) -> list[int | None]:
        """What a handler would like to do with each record."""
        drawn: list[int | None] = list(self.random.choices((1, 2, 3, 0, None), (8, 3, 1, 0.5, 1), k=records))
        return [drawn[0]] * records if self.random.random() < 0.2 else drawn

    def _send(self, lease: Held, sent: dict[int, int], keys: Keys) -> object:
        at, request, wait = lease.at, self.history.request(), self.history.wait(0.5)
        sets = {
            kind: OffsetSet.from_offsets([o for o, k in sent.items() if k == kind])
            for kind in (1, 2, 3, 0, HOLD)
        }
        runs = sorted((f, last, kind) for kind in (1, 2, 3, 0) for f, last in sets[kind].runs())

        def memory() -> object:
            batches = [AcknowledgementBatch.of(*run) for run in runs]
            result = said(
                lambda: did(
                    self.memory.acknowledge(
                        at,
                        lease.member,
                        batches,
                        lease=lease.lease,
                        not_before=wait,
                        request_id=request,
                        holds=sets[HOLD],
                        keys=keys,
                    )
                )
            )
            # Sets cannot be malformed: past what was acquired is not held.
            return "INVALID_RECORD_STATE" if result == "INVALID_REQUEST" else result

        def sql() -> object:
            told = (str(sets[kind]) for kind in (1, 2, 3, 0))
            row = self.sql.call(
                "in_order", *place(at), lease.lease.state_epoch, lease.member, lease.token, str(request), *told, wait,
                str(sets[HOLD]), json_of(keys),
            )[0]  # fmt: skip
            return refusal(*error(row)) or tuple(row[name] for name in DID)

        return self.history.send("acknowledge in order", memory, sql, at, runs, sets[HOLD], keys, wait)

    def _overtaken(self, lease: Held, sent: dict[int, int]) -> list[tuple[int, int]]:
        """Offsets about to be accepted, each with an earlier one of its key that is open and known to be of it."""
        at = lease.at
        if at not in self.history.there():
            return []
        found, key = self.memory.share_partition(at), self.history.key_of(at)
        done = {o for o, kind in sent.items() if kind in (ACCEPT, GAP)}
        still = {o for o, r in found.records.items() if r.state in OPEN} - done
        still |= found.letters.keys()
        still -= self.history.mistaken.get(at, set())
        there = [o for o in done if sent[o] == ACCEPT and o >= found.spso and o in found.records and key(o)]
        return [(o, earlier) for o in there for earlier in still if earlier < o and key(earlier) == key(o)]

    def switch(self) -> None:
        """Order is switched off while keys are open, for the next acquire to forget them; or on again."""
        off = [group for group in self.history.groups if self.memory.config(group, ORDER) == "none"]
        there = self.history.there()
        known = [at.group_id for at in there if known_open(self.memory.share_partition(at))]
        if off:
            self.history.configure(self.random.choice(off), {ORDER: "key"})
        elif known:
            self.history.configure(self.random.choice(known), {ORDER: "none"})
            self.tally.met["an open key of an order that is off"] += 1

    def let_keys_go(self) -> None:
        """Dead letters were redriven or discarded."""
        holding = [at for at in self.history.there() if self.memory.share_partition(at).letters]
        at = self.random.choice(holding) if holding else self.history.at()
        if at not in self.history.there():
            return
        letters = self.memory.share_partition(at).letters
        chosen = OffsetSet.from_offsets(sorted(o for o in letters if self.random.random() < 0.6) or [0])
        # An earlier batch has written letters of the same records, or of others at their places: they hold nothing.
        batches = {letter.sequence for letter in letters.values()} or {1}
        wanted = {
            sequence - (self.random.random() < 0.2): chosen
            for sequence in sorted(batches)
            if self.random.random() < 0.8
        }
        self.tally.met["a letter that held its key"] += bool(letters)
        self.history.both(
            "let keys go",
            lambda: self.memory.let_keys_go(at, wanted),
            lambda: self._let_go(at, wanted),
            at,
            wanted,
        )

    def _let_go(self, at: SharePartition, wanted: Mapping[int, OffsetSet]) -> object:
        sequences, letters = list(wanted), [str(offsets) for offsets in wanted.values()]
        would = self.sql.rows("letters_held", *place(at), sequences, letters)
        done = self.sql.rows("let_keys_go", *place(at), sequences, letters)
        if done != would:
            raise Different(f"{done} were let go, and the dry run said {would}")
        return done[0]
