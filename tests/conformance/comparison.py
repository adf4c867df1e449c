"""What must be equal in both engines after every step of a random history.

Epochs, SPSO, SPEO and counts, why leasing is paused, the circuit breaker, and each offset's state, delivery count,
part, cause, lease, expiry and the time that it waits for, to the microsecond.
"""

from __future__ import annotations

from typing import Any

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import SharePartition
from tests.conformance.drawing import drawn
from tests.conformance.history import History
from tests.conformance.liveness import Liveness
from tests.conformance.sql_side import ranges_of
from tests.conformance.tally import Different
from tests.oracle import RecordState
from tests.oracle.kept import removable
from tests.oracle.order import known_open, unknown_open


class Comparison:
    """The states of both engines after the steps of a history."""

    def __init__(self, history: History) -> None:
        self.history, self.sql, self.memory, self.tally = history, history.sql, history.memory, history.tally

    def compare(self) -> None:
        """All that can be told of both in one query."""
        figures: dict[SharePartition, tuple[Any, ...]] = {}
        offsets: dict[SharePartition, dict[int, tuple[Any, ...]]] = {}
        for row in self.sql.rows("snapshot", self.history.groups):
            at = SharePartition(*row[:3])
            seen = offsets.setdefault(at, {})
            if at not in figures:
                figures[at] = (*row[3:10], self._sql_circuit(row[10:18]))
            state, count, isolate, cause, token, expires_at, not_before, text = row[18:]
            if state is None:
                continue
            until = self.sql.seconds(expires_at) if expires_at else None
            wait = self.sql.wait(not_before)
            entry = (
                state,
                count,
                isolate,
                cause if state == 3 else None,
                self.history.tokens.get(token),
                until,
                wait,
            )
            for first, last in ranges_of(text):
                for offset in range(first, last + 1):
                    if offset in seen:
                        raise Different(f"{at}: offset {offset} is in two states at once")
                    if offset >= row[4] or state in (1, 3):
                        seen[offset] = entry
        there = self.history.there()
        if sorted(figures) != there:
            raise Different(f"initialised in Postgres: {sorted(figures)}, in memory: {there}")
        for at in there:
            self._compare_one(at, figures[at], offsets[at])
        if self.history.ordered:
            self._compare_keys()

    def _compare_one(
        self, at: SharePartition, figures: tuple[Any, ...], offsets: dict[int, tuple[Any, ...]]
    ) -> None:
        found = self.memory.share_partition(at)
        self.tally.transitions |= {(a.name, b.name) for a, b in found.transitions}
        expected = (
            found.state_epoch, found.spso, found.speo, found.delivery_complete_count, found.lost_records,
            found.log_end, self.memory.paused_by_hand(at), self._circuit(at),
        )  # fmt: skip
        if expected != figures:
            raise Different(
                f"{at} of {at.group_id}: epoch, SPSO, SPEO, complete, lost, end, paused, circuit:"
                f" in memory {expected}, not {figures};"
                f" in memory {drawn(self.memory.describe(at))}; in Postgres {offsets};"
                f" the last calls: {self.history.last}"
            )
        records = {
            offset: (
                int(r.state),
                r.delivery_count,
                r.part,
                r.cause if r.state is RecordState.ARCHIVING else None,
                None if r.lease_id is None else found.leases[r.lease_id].token,
                r.expires_at,
                r.not_before,
            )
            for offset, r in found.records.items()
            if offset >= found.spso or r.state in (1, 3)
        }
        if records != offsets:
            odd = {
                o: (records.get(o), offsets.get(o))
                for o in sorted(records.keys() | offsets.keys())
                if records.get(o) != offsets.get(o)
            }
            raise Different(
                f"{at} of {at.group_id}, in memory and in Postgres: {odd}; {self.history.whole(at)};"
                f" the last calls: {self.history.last}"
            )
        if any(r.not_before is not None for r in found.records.values()):
            self.tally.met["a wait"] += 1

    def _compare_keys(self) -> None:
        """The keys that are known of open records and of letters that hold them, and whether all are."""
        known: dict[SharePartition, dict[int, tuple[str | None, int | None]]] = {}
        unknown: dict[SharePartition, bool] = {}
        counted: dict[SharePartition, tuple[int, int]] = {}
        for row in self.sql.rows("known_keys", self.history.groups):
            at, (offset, key, letter) = SharePartition(*row[:3]), row[6:]
            unknown[at], counted[at] = row[3], row[4:6]
            if offset is not None:
                known.setdefault(at, {})[offset] = key, letter
        for at in self.history.there():
            found = self.memory.share_partition(at)
            expected = {
                offset: (
                    None if key is None else str(key),
                    found.letters[offset].sequence if offset in found.letters else None,
                )
                for offset, key in known_open(found).items()
            }
            if expected != known.get(at, {}):
                raise Different(
                    f"{at} of {at.group_id}, known keys in memory {expected}, in Postgres {known.get(at, {})};"
                    f" in memory {drawn(self.memory.describe(at))}; the last calls: {self.history.last}"
                )
            counts = len(expected), len({key for key, _ in expected.values() if key is not None})
            if counts != counted[at]:
                raise Different(f"{at}: {counted[at]} open records and keys are counted, not {counts}")
            if not unknown[at] and unknown_open(found):
                raise Different(
                    f"{at} of {at.group_id}: the keys of {unknown_open(found)} are unknown, and Postgres thinks"
                    f" that all are known; in memory {drawn(self.memory.describe(at))};"
                    f" the last calls: {self.history.last}"
                )

    def _sql_circuit(self, row: tuple[Any, ...]) -> tuple[Any, ...] | None:
        state, answered, failed, retry_at, reason, probe, probe_records, probe_failed = row
        if state is None:
            return None
        probing = (frozenset(ranges_of(probe)), probe_records, probe_failed) if state == "probing" else None
        until = self.sql.seconds(retry_at) if retry_at else None
        return state, round(answered, 6), round(failed, 6), until, reason, probing

    def _circuit(self, at: SharePartition) -> tuple[Any, ...] | None:
        circuit = self.memory.share_partition(at).circuit
        if circuit is None:
            return None
        self.tally.met.update(f"{before} to {after}" for before, after in circuit.moves)
        probing = None
        if circuit.state == "probing":
            runs = OffsetSet.from_offsets(circuit.probe).runs()
            probing = (frozenset(runs), circuit.probe_records, circuit.probe_failed)
        acknowledged, failed = round(circuit.acknowledged, 6), round(circuit.failed, 6)
        return circuit.state, acknowledged, failed, circuit.retry_at, circuit.reason, probing

    def compare_at_leisure(self) -> None:
        """What takes longer: the invariants of both, and how many records have ended how."""
        broken = [*self.memory.verify(), *(row[0] for row in self.sql.rows("verify", self.history.groups))]
        if broken:
            raise Different(f"invariants that do not hold: {broken}")
        self._compare_removable()
        got = {row[:4]: row[4] for row in self.sql.rows("outcomes", self.history.groups)}
        expected = {
            (at.group_id, at.partition, outcome, count): records
            for at in self.history.there()
            for (outcome, count), records in self.memory.share_partition(at).outcomes.items()
        }
        if got != expected:
            raise Different(f"outcomes by delivery count: in memory {expected}, in Postgres {got}")

    def _compare_removable(self) -> None:
        """Which leases have kept records that nobody needs any more."""
        for group in self.history.groups:
            expected = sorted(
                row.token
                for at in self.memory.share_partitions(group)
                for row in removable(self.memory.share_partition(at))
            )
            got = sorted(
                self.history.tokens[row["location"]] for row in self.sql.call("removable_kept", group)
            )
            if got != expected:
                raise Different(
                    f"{group}: removable in memory {expected}, in Postgres {got}; {self.history.last}"
                )

    def check_reasons(self) -> None:
        """Where there is lag, something can be leased now, or one named reason says why not."""
        if wrong := self.sql.rows("not_live", self.history.groups):
            raise Different(wrong[0][0])

    def check_liveness(self) -> None:
        """Try what the SQL says of liveness."""
        Liveness(self.sql, self.history.groups, self.tally).check()
