"""The ledger's part for what operators, the service and the clock do, and what holds when all is quiet."""

from __future__ import annotations

from typing import Any

from tests.fuzzer.acknowledgements import Acknowledgements
from tests.fuzzer.records import GIVEN_UP, At, Call, Partition, Record, multirange, offsets_of, seconds


class Ledger(Acknowledgements):
    """The whole ledger."""

    def _nothing(self, call: Call) -> None:
        """An operation whose result concerns no record."""

    _make_group = _sweep = _pause = _config = _clock = _add_acl = _remove_acls = _nothing
    _raise_state_epochs = _take_snapshots = _hold_dead_letters = _nothing

    def _claim_group(self, call: Call) -> None:
        """The pipeline is the one that claims, or one that has claimed the group before."""
        known = self.pipelines.setdefault(call.args["p_group_id"], set())
        known.add(call.args["p_pipeline"])
        if call.result[0] not in {None, *known}:
            self._fault(f"a claim returned {call.result[0]}, which nobody has claimed for")

    def _report_losses(self, call: Call) -> None:
        """No loss is reported twice: never more than retention can have taken."""
        group = call.args["p_group_id"]
        self.reported[group] += call.result[0]
        if call.result[0] < 0 or self.reported[group] > self.lost[group]:
            self._fault(f"{self.reported[group]} records reported as lost, at most {self.lost[group]} are")

    def _verify(self, call: Call) -> None:
        if call.result:
            self._fault(f"verify: {call.result}")

    _verify_journal = _verify

    def _renew(self, call: Call) -> None:
        at, a = call.share_partition, call.args
        assert at
        row = call.result[0]
        partition = self._touch(at, refused=bool(row["error_code"]))
        if row["error_code"] or partition is None:
            return
        held = [r for r in partition.records.values() if r.state == "held" and r.token == a["p_token"]]
        if not any(r.token == a["p_token"] for r in partition.records.values()):
            self._fault(f"renewed {a['p_token']}, which holds nothing", at)
        for record in held:
            if record.member != a["p_member_id"]:
                self._fault(f"renewed by {a['p_member_id']}, held by {record.member}", at)
            if record.high <= self.low:
                self._fault(f"renewed at {self.low}, lapsed at {record.high}", at)
            record.low = record.high = seconds(row["expires_at"])
            self._note(record, f"renewed until {record.low:.6f}")

    def _release(self, call: Call) -> None:
        a = call.args
        least = most = 0
        for at, partition in self.partitions.items():
            if at[0] != a["p_group_id"]:
                continue
            for record in partition.records.values():
                if record.member != a["p_member_id"] or a["p_token"] not in (None, record.token):
                    continue
                most += record.state in ("held", "lost") and bool(record.token)
                # What was leased while it ran may have come too late for it.
                if record.state == "held" and (record.granted < call.started or a["p_token"]):
                    least += self._high(record) < record.low
                    self._released(record, a)
                elif record.state == "held":
                    record.low = 0.0
                    if a["p_cancelled"] or a["p_refund"]:
                        record.counts |= self._refunded(record)
                    self._note(record, "perhaps given back")
        acknowledged = call.result[0]
        if not least <= acknowledged <= most:
            self._fault(f"released {acknowledged}, not {least} to {most}")

    def _released(self, record: Record, a: dict[str, Any]) -> None:
        lapsed = self._high(record) >= record.low
        counts, limits = set(record.counts), self.settings[record.group].limits_ever
        if not (a["p_cancelled"] or a["p_refund"]):
            self._end(record, unacknowledged=True, what="given back")
            return
        record.counts = self._refunded(record) | (counts if lapsed or not a["p_refund"] else set())
        record.state, record.token = "avail", ""
        record.maybe_over = lapsed and max(counts) >= min(limits)
        self._note(record, "given back, cancelled or refunded")

    def _refunded(self, record: Record) -> set[int]:
        """The counts that its records may have after a delivery was given back: one less, and below the limit."""
        limits = self.settings[record.group].limits_ever
        at_limit = {limit - 1 for limit in limits} if max(record.counts) >= min(limits) else set()
        return {max(c - 1, 0) for c in record.counts} | at_limit

    def _extend_locks(self, call: Call) -> None:
        for partition in self.partitions.values():
            for record in self._window(partition):
                if record.state == "held":
                    record.high += call.args["seconds"]
                    if self._high(record) < record.low:
                        record.low += call.args["seconds"]

    def _force(self, call: Call) -> None:
        at, a = call.share_partition, call.args
        assert at
        partition = self._touch(at)
        if not a["p_execute"]:
            return
        for row in call.result:
            if row["error_code"] or row["act"] in ("refuse", "none"):
                self._refused_by_hand(at, row)
                continue
            assert partition is not None
            for offset in offsets_of(row["offsets"]):
                record = partition.records.get(offset)
                if record is None or record.state not in ("avail", "held"):
                    self._fault(f"forced {offset}, which nobody has", at, offset)
                    continue
                self.left[record.token] -= 1
                if a["p_act"] == "release":
                    limits = self.settings[at[0]].limits_ever
                    if max(record.counts) >= min(limits):
                        record.counts |= {limit - 1 for limit in limits}
                    record.state, record.token, record.maybe_over = "avail", "", False
                    record.not_before = 0.0
                else:
                    self._give_up(record, "rejected", self.settings[at[0]].dlq)
                self._note(record, f"forced: {a['p_act']}, {row}")

    def _refused_by_hand(self, at: At, row: dict[str, Any]) -> None:
        for offset in offsets_of(row["offsets"] or "{}") if row["act"] == "refuse" else ():
            partition = self.partitions.get(at)
            record = partition.records.get(offset) if partition else None
            if partition is None or record is None or offset < partition.spso:
                continue
            maybe_over = record.maybe_done or self._may_have_lapsed_out(record)
            if record.state in ("avail", "held") and not maybe_over:
                self._fault(f"not forced: {offset}, {row['reason']}", at, offset)

    def _open_dead_letters(self, call: Call) -> None:
        at = call.share_partition
        assert at
        partition = self._touch(at)
        if not call.result:
            return
        if partition is None:
            self._fault("letters of what is not there")
            return
        sequence = call.result[0]["sequence"]
        opened = {o for row in call.result for o in offsets_of(row["offsets"])}
        if partition.open_letters is not None:
            if partition.open_letters != (sequence, opened):
                self._fault(f"opened {sequence} {opened}, before {partition.open_letters}", at)
            return
        partition.open_letters = (sequence, opened)
        for row in call.result:
            for offset in offsets_of(row["offsets"]):
                record = partition.records.get(offset)
                if record is None or not self._may_be_letter(record):
                    self._fault(f"{offset} is a dead letter", at, offset)
                    continue
                if row["delivery_count"] not in record.counts:
                    self._fault(f"{offset} is a letter of count {row['delivery_count']}", at, offset)
                if (record.state == "rejected") != (row["cause"] == "rejected"):
                    self._fault(f"{offset}: {row['cause']}, and {record.state}", at, offset)
                if record.state not in GIVEN_UP:
                    record.state = "exhausted"
                record.letter, record.maybe_over, record.token = "open", False, ""
                self._note(record, f"opened as letter of {sequence}, {row['cause']}")

    def _may_be_letter(self, record: Record) -> bool:
        if record.state in GIVEN_UP:
            return record.letter in ("owed", "maybe")
        lapsed = record.state == "held" and self._may_have_lapsed_out(record)
        return record.maybe_over or lapsed or record.state == "lost"

    def _close_letters(self, call: Call) -> None:
        at = call.share_partition
        partition = self.partitions.get(at) if at else None
        if partition is not None:
            letters, sequence = offsets_of(call.args["p_offsets"]), call.args["p_sequence"]
            partition.let_go |= {o for o in letters if partition.batch_of.get(o) == sequence}

    def _close_dead_letters(self, call: Call) -> None:
        at = call.share_partition
        assert at
        partition = self._touch(at)
        if partition is None or partition.open_letters is None:
            if call.result[0]:
                self._fault("closed what was not open", at)
            return
        sequence, opened = partition.open_letters
        if call.args["p_sequence"] != sequence:
            if call.result[0]:
                self._fault(f"closed {call.args['p_sequence']}, open is {sequence}", at)
            return
        if call.result[0] > len(opened):
            self._fault(f"closed {call.result[0]} of {len(opened)}", at)
        for offset in opened:
            record = partition.records[offset]
            record.letter = "closed"
            partition.batch_of[offset] = sequence
            self._note(record, f"letter of {sequence} closed")
        partition.open_letters = None

    # When all is quiet.

    def compare(
        self, status: dict[At, dict[str, Any]], outputs: dict[int, int], kept: dict[At, dict[int, set[int]]]
    ) -> None:
        """Between phases: what `share_partition_status` and `counted_outputs` say, and which records are kept."""
        self.call = None
        if set(status) != set(self.partitions):
            self._fault(f"there are {sorted(status)}, not {sorted(self.partitions)}")
        for at, partition in self.partitions.items():
            row = status.get(at)
            if row is None:
                continue
            self._pass_by(at, partition, row["spso"])
            least, most = self.completed(partition)
            if not least <= row["delivery_complete_count"] <= most:
                self._fault(f"complete {row['delivery_complete_count']}, not {least} to {most}", at)
            if row["status"] != partition.status:
                self._fault(f"status {row['status']}, not {partition.status}", at)
        if self.outputs != outputs:
            self._fault(f"outputs differ: {set(self.outputs.items()) ^ set(outputs.items())}")

        for at, partition in self.partitions.items():
            found = kept.pop(at, {})
            for lease, (certain, possible) in partition.kept.items():
                offsets = found.pop(lease, set())
                if not certain <= offsets <= possible:
                    self._fault(f"lease {lease} has kept {offsets}, not {certain} to {possible}", at)
            if found:
                self._fault(f"records are kept, and no call has kept them: {found}", at)
        if kept:
            self._fault(f"records are kept of what is not there: {kept}")

    def _pass_by(self, at: At, partition: Partition, spso: int) -> None:
        self._spso(at, partition, spso, None, still=False)

    def drained(self, letters_everywhere: bool) -> None:
        """At the end: every record came to exactly one end."""
        self.call = None
        for at, partition in self.partitions.items():
            end = partition.log_end or partition.start
            for offset in range(partition.start, end):
                record = partition.records.get(offset)
                # Of what retention took it stays open whether it was to be a letter: the config was being changed.
                passed = offset < partition.spso
                if record is None or not (record.maybe_done if passed else record.done):
                    self._fault(f"{offset} came to no end", at, offset)
                elif letters_everywhere and record.state in GIVEN_UP and record.letter != "closed":
                    self._fault(f"{offset} was given up without a letter", at, offset)
            if partition.spso < end:
                self._fault(f"SPSO {partition.spso}, log end {end}", at)


__all__ = ["Ledger", "multirange"]
