"""The ledger's part for what workers do: what was leased to whom, and what they acknowledged."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.fuzzer.ledger import Books
from tests.fuzzer.records import (
    ACCEPT,
    GAP,
    GIVEN_UP,
    HOLD,
    REJECT,
    RELEASE,
    At,
    Call,
    Partition,
    Record,
    offsets_of,
    seconds,
)
from tests.ordered import key_of


class Acknowledgements(Books):
    """The part for workers' calls."""

    def _acquire(self, call: Call) -> None:
        at = call.share_partition
        assert at
        partition = self._touch(at, refused=any(row["error_code"] for row in call.result))
        self._granted(call, at, partition, call.result)

    def _granted(self, call: Call, at: At, partition: Partition | None, rows: list[dict[str, Any]]) -> None:
        rows = [r for r in rows if not r["error_code"] and r["offsets"]]
        if not rows:
            return
        if partition is None:
            self._fault("leased from what is not there")
            return
        a, s, total = call.args, self.settings[at[0]], 0
        size = sum(len(offsets_of(r["offsets"])) for r in rows)
        if partition.status != "active":
            self._fault(f"leased while {partition.status}", at)
        token = rows[0]["token"]
        if token in self.tokens:
            self._fault(f"token {token} was given before", at)
        self.tokens.add(token)
        self.lease_ids[token], self.left[token] = rows[0]["lease_id"], size
        levels = {row["isolation_level"] for row in rows}
        stable = "read_committed" in levels
        self.tally[f"leased {min(levels)}"] += 1
        if len(levels) != 1 or stable not in s.committed:
            self._fault(f"leased at {levels}, the config is read_committed: {s.committed}", at)
        if self.ordered and any(self._surely_held(record) for record in partition.records.values()):
            self._fault("leased while another lease is open", at)
        left_out = set(offsets_of(a.get("p_leave_out") or "{}"))
        for row in rows:
            expires = seconds(row["expires_at"])
            began = expires - row["lock_duration_ms"] / 1000
            for offset in offsets_of(row["offsets"]):
                total += 1
                record = partition.records.setdefault(offset, Record("fresh", {0}, group=at[0]))
                if record.state == "held" and self._high(record) >= record.low:
                    self._lapse(record)
                expected = {c + 1 for c in record.counts}
                if record.suspect:
                    # At the limit it shared its last delivery: it gets one more for itself, uncounted.
                    expected |= {c for c in record.counts if c >= min(s.limits_ever)}
                end = partition.stable if stable else partition.log_end
                if offset < partition.spso or (end is not None and offset >= end):
                    self._fault(f"{offset} leased, SPSO {partition.spso}, end {end}", at, offset)
                if offset in left_out and record.state != "fresh":
                    self._fault(f"{offset} leased, though left out", at, offset)
                if record.state == "held":
                    self._fault(f"{offset} is held by {record.token} until {record.low}", at, offset)
                if record.state not in ("fresh", "avail", "held") or record.done:
                    self._fault(f"{offset} is {record.state} and was leased", at, offset)
                if row["delivery_count"] not in expected:
                    self._fault(f"{offset} has count {row['delivery_count']}, not {expected}", at, offset)
                if row["delivery_count"] > max(s.limits_ever):
                    self._fault(f"{offset} has count {row['delivery_count']} of {s.limits_ever}", at, offset)
                if began + 1e-6 < record.not_before:
                    self._fault(f"{offset} waits until {record.not_before}, leased {began}", at, offset)
                record.state, record.counts, record.token = "held", {row["delivery_count"]}, token
                record.member, record.low, record.high = a["p_member_id"], expires, expires
                record.granted_in, record.maybe_over = len(self._phase_high) - 1, False
                record.suspect = False
                record.fan_out = self.ordered or a["p_redelivery"] == "fan_out"
                record.not_before, record.granted = 0.0, call.finished
                self._note(record, f"leased under {token} until {expires:.6f}, {a['p_redelivery']}")
        exact = a["p_redelivery"] == "fan_out" or a.get("p_mode") == "record_limit"
        if exact and total > a["p_max_records"]:
            self._fault(f"{total} records leased of {a['p_max_records']}", at)

    def _acknowledge(self, call: Call) -> None:
        a = call.args
        asked = {
            o: kind
            for kind, name in (
                (ACCEPT, "accept"),
                (RELEASE, "release"),
                (REJECT, "reject"),
                (GAP, "gap"),
            )
            for o in offsets_of(a.get(f"p_{name}") or "{}")
        }
        self._acknowledged(call, asked, call.result[0], call.result[0]["error_code"])

    def _acknowledge_and_keep(self, call: Call) -> None:
        self._acknowledge(call)
        row, a = call.result[0], call.args
        partition = self.partitions.get(call.share_partition) if call.share_partition else None
        if partition is None or row["error_code"]:
            return
        offsets = set(offsets_of(a["p_kept"]))
        certain, possible = partition.kept.setdefault(self.lease_ids[a["p_token"]], (set(), set()))
        certain |= {o for o in offsets if o >= row["spso"]}
        possible |= offsets

    def _sweep_kept(self, call: Call) -> None:
        """What was removed, nobody needed: each record is finished, or a later lease has kept it."""
        for row in call.result:
            at = (call.args["p_group_id"], row["topic"], row["partition"])
            partition = self.partitions.get(at)
            offsets = set(offsets_of(row["offsets"]))
            if partition is None or row["lease_id"] not in partition.kept:
                self._fault(f"{offsets} of lease {row['lease_id']} were removed, and never kept", at)
                continue
            del partition.kept[row["lease_id"]]
            later = {
                o for lease, (_, some) in partition.kept.items() if lease > row["lease_id"] for o in some
            }
            for offset in offsets - later:
                record = partition.records[offset]
                if record.state in ("avail", "held") and self._surely_open(at, offset, record):
                    self._fault(
                        f"{offset} is open, and what lease {row['lease_id']} kept of it is gone", at, offset
                    )

    def _acknowledge_in_order(self, call: Call) -> None:
        a = call.args
        names = {GAP: "gap", ACCEPT: "accept", RELEASE: "release", REJECT: "reject", HOLD: "hold"}
        asked = {o: kind for kind, name in names.items() for o in offsets_of(a[f"p_{name}"])}
        row = call.result[0]
        self._acknowledged(call, asked, row, row["error_code"])
        partition = self.partitions.get(call.share_partition) if call.share_partition else None
        if partition is not None and not row["error_code"]:
            partition.reported |= {o for each in json.loads(a["p_keys"]) for o in offsets_of(each["offsets"])}

    def _surely_held(self, record: Record) -> bool:
        return record.state == "held" and self._high(record) < record.low

    def _in_order(self, at: At, partition: Partition, offset: int) -> None:
        """An accepted record is the first of its key that is open."""
        key = key_of(at, offset)
        if not self.ordered or key is None:
            return
        if offset < (last := partition.accepted.get(key, -1)):
            self._fault(f"{offset} was accepted after {last}, of the same key", at, offset)
        partition.accepted[key] = max(last, offset)
        for earlier, record in partition.records.items():
            if earlier < offset and key_of(at, earlier) == key and self._surely_open(at, earlier, record):
                self._fault(f"{offset} was accepted before {earlier}, of the same key", at, earlier)

    def _surely_open(self, at: At, offset: int, record: Record) -> bool:
        if record.state in GIVEN_UP:
            partition = self.partitions[at]
            kept = at[0] in self.letters_hold and offset in partition.reported - partition.let_go
            return record.letter in ("owed", "open") or (record.letter == "closed" and kept)
        if record.state not in ("avail", "held") or record.maybe_over:
            return False
        return record.state == "avail" or not self._may_have_lapsed_out(record)

    def _acknowledge_batches(self, call: Call) -> None:
        self._acknowledged(call, self._runs(call), call.result[0], call.result[0]["error_code"])

    @staticmethod
    def _runs(call: Call) -> dict[int, int]:
        runs = zip(call.args["firsts"], call.args["lasts"], call.args["types"], strict=True)
        return {o: kind for first, last, kind in runs for o in range(first, last + 1)}

    def _acknowledged(
        self, call: Call, asked: dict[int, int], row: dict[str, Any], error: int | None
    ) -> None:
        at, a = call.share_partition, call.args
        assert at
        partition = self._touch(at, refused=bool(error))
        if error:
            self.tally[f"refused {error}"] += 1
            return
        if partition is None:
            self._fault("acknowledged what is not there")
            return
        did: Counter[str] = Counter()
        for offset, kind in asked.items():
            record = partition.records.get(offset)
            if record is not None and record.state == "held" and record.high <= self.low:
                self._lapse(record)
            if (
                record is None
                or record.state != "held"
                or (record.token, record.member) != (a["p_token"], a["p_member_id"])
            ):
                # What retention took from under a lease is still of that lease, and of its output.
                if (
                    record is not None
                    and record.state == "lost"
                    and record.token == a["p_token"]
                    and kind == ACCEPT
                ):
                    # It counts as accepted where the lease was still alive.
                    did["accepted"] += 1
                    did["doubtful"] += 1
                    did["output"] += 1
                below = offset < partition.spso or (record is not None and record.maybe_done)
                # This very call may have found the holder's last lock lapsed, and SPSO passed the record then;
                # whether it might, `_spso` judges. Below SPSO nobody is asked who he is.
                passed = row["spso"] is not None and offset < row["spso"]
                if passed and record is not None and record.state == "held":
                    below = below or self._may_have_lapsed_out(record)
                if not below:
                    who = f"{a['p_member_id']} under {a['p_token']}"
                    self._fault(f"{offset} was acknowledged and is not held by {who}", at, offset)
                continue
            if a.get("p_outputs", "[]") != "[]":
                did["output"] += kind == ACCEPT
            passed = row["spso"] is not None and offset < row["spso"]
            did["doubtful"] += passed and self._may_have_lapsed_out(record)
            if kind == ACCEPT:
                self._in_order(at, partition, offset)
            self._apply(call, record, kind, did)
        self._counts(at, row, did)
        if a.get("p_outputs", "[]") != "[]":
            lease = self.lease_ids[a["p_token"]]
            if lease in self.outputs:
                self._fault(f"lease {lease} has a second output", at)
            self.outputs[lease] = did["output"]
            folder = json.loads(a["p_outputs"])[0]["location"].partition("/leases=")[0]
            if (owner := self.folders.setdefault(folder, at[0])) != at[0]:
                self._fault(f"{folder} is {owner}'s, and {at[0]} has an output there", at)
        if row["spso"] is not None:
            self._spso(at, partition, row["spso"], row["lag"])

    def _apply(self, call: Call, record: Record, kind: int, did: Counter[str]) -> None:
        self.left[record.token] -= 1
        if kind == HOLD:
            record.state, record.token, record.not_before = "avail", "", 0.0
            record.counts = {max(0, count - 1) for count in record.counts}
        elif kind == ACCEPT:
            record.state, did["accepted"] = "accepted", did["accepted"] + 1
        elif kind == GAP:
            record.state, did["gaps"] = "gap", did["gaps"] + 1
        elif kind == REJECT:
            self._give_up(record, "rejected", self.settings[record.group].dlq)
            did["rejected"] += 1
        elif kind == RELEASE:
            self._end(record, unacknowledged=False, what="released")
            did["out"] += 1
            did["surely exhausted"] += record.state == "exhausted"
            did["perhaps exhausted"] += record.maybe_over
            not_before = float(call.args.get("not_before") or 0.0)
            record.not_before = not_before if not_before > call.at else 0.0
            return
        self._note(record, "acknowledged")

    def _counts(self, at: At, row: dict[str, Any], did: Counter[str]) -> None:
        for name in ("accepted", "rejected", "gaps"):
            if not did[name] - did["doubtful"] <= row[name] <= did[name]:
                self._fault(f"{name} {row[name]}, not {did[name]}", at)
        least, most = did["surely exhausted"], did["surely exhausted"] + did["perhaps exhausted"]
        both, doubtful = row["released"] + row["exhausted"], did["doubtful"]
        if (
            not did["out"] - doubtful <= both <= did["out"]
            or not least - doubtful <= row["exhausted"] <= most
        ):
            self._fault(f"released {row['released']}, exhausted {row['exhausted']}: {dict(did)}", at)
