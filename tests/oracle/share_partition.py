"""A share-partition in memory, and how it moves by itself.

The window of records (``window``) with those who hold them: what a lapsed lock, a closed session or a cancelled
run does (R-LT, R-RL), renewals (R-RN), and what outcomes mean to its circuit breaker. How records are acquired and
acknowledged is in ``acquiring``, ``fan_out`` and ``acknowledging``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from tests.oracle.circuit_breaker import CircuitBreaker
from tests.oracle.records import Policy, Record, RecordState
from tests.oracle.window import InFlightWindow

AVAILABLE, ACQUIRED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ARCHIVED


class InMemorySharePartition(InFlightWindow):
    """One share-partition. Every method assumes that nothing else acts at the same time."""

    # The circuit breaker

    def allowed(self, most: int, policy: Policy, now: float) -> tuple[int, bool]:
        """How many records the circuit breaker lets through, and whether as its probe."""
        if policy.breaker is None or self.circuit is None:
            return most, False
        held = [offset for offset, record in self.records.items() if record.state is ACQUIRED]
        return self.circuit.allows(policy.breaker, most, held, now)

    def count_in_circuit(
        self,
        acknowledged: Collection[int],
        failed: Collection[int],
        returning: Collection[int],
        silent: Collection[int],
        policy: Policy,
        now: float,
    ) -> float | None:
        """What outcomes mean to the circuit breaker, before they take effect; return before when what comes back
        is not to be delivered. A record that comes back from a probe has its delivery back already."""
        if policy.breaker is None or not (acknowledged or silent):
            return None
        if not acknowledged and (self.circuit is None or self.circuit.state != "probing"):
            return None
        if self.circuit is None:
            self.circuit = CircuitBreaker()
        for offset in self.circuit.refunds(returning):
            self.records[offset].delivery_count -= 1
        return self.circuit.counts(policy.breaker, acknowledged, failed, silent, now)

    # Deliveries that end without an acknowledgement

    def settle(self, now: float, policy: Policy) -> tuple[int, int]:
        """What the lapsed locks leave behind, the oldest lapse first (R-LT); return how many leases and records.

        Locks from the future, before the clock was set back, count as taken now.
        """
        for record in self.records.values():
            if record.locked_at is not None and record.expires_at is not None and record.locked_at > now:
                record.expires_at -= record.locked_at - now
                record.locked_at = now
        expiries = {
            record.lease_id: record.expires_at
            for record in self.records.values()
            if record.lease_id is not None and record.expires_at is not None and record.expires_at <= now
        }
        lapsed = sorted(
            (lease_id for lease_id in self.leases if lease_id in expiries),
            key=lambda lease_id: expiries[lease_id],
        )
        return len(lapsed), self.end_unanswered(lapsed, policy, now)

    def release(
        self,
        member_id: str,
        policy: Policy,
        now: float,
        token: UUID | None = None,
        *,
        cancelled: bool = False,
        refund: bool = False,
    ) -> int:
        """Everything a member holds, or one lease of it, goes back unanswered (R-RL-6); return how many records.

        Counts stay, unless the run was cancelled and the group refunds that, or ``refund`` says so; and such records
        are no suspects.
        """
        theirs = [
            lease.lease_id
            for lease in self.leases.values()
            if lease.member_id == member_id and token in (None, lease.token)
        ]
        if not (cancelled or refund):
            return self.end_unanswered(theirs, policy, now)
        released = sum(self._end_cancelled(lease_id, policy, refund) for lease_id in theirs)
        if theirs:
            self.forget_ended_leases()
            self.advance_spso()
        return released

    def held(self, member_id: str, token: UUID | None = None) -> list[int]:
        """What a member holds, or what it holds under one lease, in order."""
        return [
            offset
            for offset, record in sorted(self.records.items())
            if record.lease_id is not None
            and self.leases[record.lease_id].member_id == member_id
            and token in (None, self.leases[record.lease_id].token)
        ]

    def renew(self, member_id: str, policy: Policy, now: float, token: UUID | None = None) -> float | None:
        """A full lock duration from now for all that is held (R-RN-1); the earliest expiry, None if nothing is."""
        expiries = []
        for offset in self.held(member_id, token):
            record = self.records[offset]
            own = self.leases[record.lease_id].lock_seconds if record.lease_id is not None else None
            record.locked_at, record.expires_at = now, now + (policy.lock_seconds if own is None else own)
            expiries.append(record.expires_at)
        return min(expiries, default=None)

    def end_unanswered(self, lease_ids: Sequence[int], policy: Policy, now: float) -> int:
        """Leases whose deliveries ended without an outcome, one by one; SPSO is tried afterwards. Return how many
        records they held."""
        ended = sum(self._end_unanswered(lease_id, policy, now) for lease_id in lease_ids)
        if lease_ids:
            self.forget_ended_leases()
            self.advance_spso()
        return ended

    def _end_unanswered(self, lease_id: int, policy: Policy, now: float) -> int:
        held = self._held_under(lease_id)
        live = [offset for offset in held if offset >= self.spso]
        not_before = self.count_in_circuit(live, live, live, (), policy, now)
        self._let_go_overtaken(held)
        if self.leases[lease_id].redelivery == "fan_out":
            self._suspect([self.records[offset] for offset in live], len(held) > 1, policy, not_before)
        else:
            for offset in live:
                self.give_back(self.records[offset], policy, not_before)
        return len(held)

    def _end_cancelled(self, lease_id: int, policy: Policy, refund: bool) -> int:
        """A person or the scheduler stopped the run: nothing is suspected, and the delivery is refunded where the
        group does that, or the caller. Else it counts, but the last one: nothing is given up by a cancellation."""
        held = self._held_under(lease_id)
        self._let_go_overtaken(held)
        refunded = refund or policy.refund_cancelled
        for record in [self.records[offset] for offset in held if offset >= self.spso]:
            record.delivery_count = min(record.delivery_count - refunded, policy.delivery_count_limit - 1)
            self.move(record, AVAILABLE)
        return len(held)

    def _held_under(self, lease_id: int) -> list[int]:
        return sorted(offset for offset, record in self.records.items() if record.lease_id == lease_id)

    def _let_go_overtaken(self, held: Iterable[int]) -> None:
        """The log start has overtaken them (R-LT-3, R-LS-6)."""
        for offset in held:
            if offset < self.spso:
                self.move(self.records[offset], ARCHIVED)

    def _suspect(
        self, records: Sequence[Record], shared: bool, policy: Policy, not_before: float | None
    ) -> None:
        """Any of these may have killed its process: they come again in parts, the last delivery alone."""
        by_count: dict[int, list[Record]] = {}
        for record in records:
            by_count.setdefault(record.delivery_count, []).append(record)
        for count, alike in by_count.items():
            left = policy.delivery_count_limit - count
            for record in alike:
                if left <= 0 and not shared:
                    self.give_up(record, "exhausted", policy)
                    continue
                self.move(record, AVAILABLE)
                record.not_before = not_before
                # Where the last delivery was shared: one more, alone, at the same count.
                record.part = part_size(len(alike), left) if left > 0 else 1

    def split_leases(self, renewed: Collection[int]) -> None:
        """Where only a part of a lease was renewed, the part goes on apart, under the same token."""
        for lease_id in list(self.leases):
            held = self._held_under(lease_id)
            kept = [offset for offset in held if offset in renewed]
            if 0 < len(kept) < len(held):
                self.splits += 1
                part = replace(self.leases[lease_id], lease_id=-self.splits, number=self.next_lease())
                self.leases[part.lease_id] = part
                for offset in kept:
                    self.records[offset].lease_id = part.lease_id

    def forget_ended_leases(self) -> None:
        """Leases under which nothing is held any more."""
        held = {record.lease_id for record in self.records.values()}
        self.leases = {lease_id: lease for lease_id, lease in self.leases.items() if lease_id in held}


def part_size(suspects: int, deliveries_left: int) -> int:
    """How many of so many suspects may share a lease, if the last delivery is to hold each alone.

    They are divided into k = ⌈N^(1 / deliveries left)⌉ parts.
    """
    parts = 1
    while parts**deliveries_left < suspects:
        parts += 1
    return math.ceil(suspects / parts)
