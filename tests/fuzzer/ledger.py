"""What must be so after a run of the fuzzer, known from the results of its calls alone.

`take_phase` is given the committed calls of a phase, each with the number that it drew while it held its locks,
so that calls on one share-partition come in the order in which they happened. It keeps a history of each record
and writes into `faults` where a result cannot be true. It knows the documented rules and nothing of the tables.
Where the results leave it open what happened (a lock may have lapsed or not, a config was just being changed)
it allows both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from tests.fuzzer.records import GIVEN_UP, At, Call, Partition, Record, Settings

KEPT_SECONDS = 3600
"""How long the result of a request id is kept at least; the next sweep forgets it."""


class Books:
    """Records, time and SPSO; workers' calls are in `fuzzer.acknowledgements`, operators' in `fuzzer.operators`."""

    def __init__(self, *, ordered: bool = False) -> None:
        self.ordered = ordered
        """Whether the groups are in order by key, from the beginning to the end."""
        self.letters_hold: set[str] = set()
        """The groups whose dead letters hold their keys."""
        self.partitions: dict[At, Partition] = {}
        self.settings: dict[str, Settings] = defaultdict(Settings)
        self.faults: list[str] = []
        self.tally: Counter[str] = Counter()
        self.first_results: dict[tuple[Any, ...], tuple[Any, float, int]] = {}
        """With when that was, and in which phase."""
        self.outputs: dict[int, int] = {}
        self.folders: dict[str, str] = {}
        """The groups to which folders of sinks belong."""
        self.tokens: set[str] = set()
        self.lease_ids: dict[str, int] = {}
        self.left: Counter[str] = Counter()
        """Records of a lease that nobody has acknowledged."""
        self.pipelines: dict[str, set[str]] = {}
        """Those that have claimed each group."""
        self.lost: Counter[str] = Counter()
        """The most records of each group that retention can have taken, and how many were reported."""
        self.reported: Counter[str] = Counter()
        self._phase_high: list[float] = []
        self._clocks: list[tuple[float, float]] = []
        self.call: Call | None = None
        self.low = 0.0

    # What a phase of calls says.

    def take_phase(self, calls: list[Call]) -> None:
        """Take the calls of one phase: none was open at its beginning, none is at its end."""
        self._phase_high.append(0.0)
        for call in calls:
            self._widen(call)
        finished = sorted((call.finished, call.at) for call in calls)
        self._clocks = list(
            zip((f for f, _ in finished), accumulate((at for _, at in finished), max), strict=True)
        )
        for call in sorted(calls, key=lambda c: c.seq):
            self.call = call
            high = max(self._phase_high[-1], call.at)
            self._phase_high[-1] = high
            self.tally[call.operation] += 1
            if not self._is_repeat(call):
                getattr(self, f"_{call.operation}")(call)

    def settle_settings(self, group: str, limit: int, dlq: bool, committed: bool) -> None:
        """Between phases: what the configs are for certain."""
        s = self.settings[group]
        s.dlq, s.committed = {dlq}, {committed}
        s.limits_ever.add(limit)
        s.dlq_ever.add(dlq)

    def _widen(self, call: Call) -> None:
        if call.operation != "config":
            return
        s, name, value = self.settings[call.args["group"]], call.args["name"], call.args["value"]
        if name == "share.delivery.count.limit":
            s.limits_ever.add(int(value))
        elif name == "errors.deadletterqueue.topic.name":
            s.dlq.add(bool(value))
            s.dlq_ever.add(bool(value))
        elif name == "share.isolation.level":
            s.committed.add(value == "read_committed")

    def _is_repeat(self, call: Call) -> bool:
        request = call.args.get("p_request_id")
        if request is None:
            return False
        key = (call.share_partition, call.operation, call.args["p_member_id"], request)
        partition = self.partitions.get(call.share_partition) if call.share_partition else None
        if key in self.first_results:
            if any(row.get("error_code") == 30 for row in call.result):
                return True
            first, at, phase = self.first_results[key]
            if first == call.result or partition is None:
                return True
            forgotten = max(self._phase_high[phase:]) - at > KEPT_SECONDS
            if not forgotten:
                self._fault(f"a repeated call returned {call.result}, at first {first}")
                return True
        refused = all(row.get("error_code") or not row.get("offsets", "-") for row in call.result)
        if partition is not None and not refused:
            self.first_results[key] = (call.result, call.at, len(self._phase_high) - 1)
        return False

    # Faults.

    def _fault(self, what: str, at: At | None = None, offset: int | None = None) -> None:
        lines = [what, f"  at {self.call}"]
        partition = self.partitions.get(at) if at else None
        if partition is not None:
            told = {k: v for k, v in vars(partition).items() if k != "records"}
            lines.append(f"  share-partition {told}")
            if offset is not None and offset in partition.records:
                lines += [f"    {line}" for line in partition.records[offset].history]
        self.faults.append("\n".join(lines))

    def _note(self, record: Record, what: str) -> None:
        c = self.call
        if c is None:
            record.history.append(f"quiet: {what} -> {record.state}")
            return
        record.history.append(
            f"#{c.seq} phase {c.phase} {c.at:.6f} {c.operation} by {c.args.get('p_member_id', '-')}: {what}"
            f" -> {record.state} counts {sorted(record.counts)} letter {record.letter}"
        )

    # Time.

    def _low(self, partition: Partition) -> float:
        """The clock was at least this when the call looked at it, behind the lock."""
        c = self.call
        assert c is not None
        low = partition.at if partition.at_phase == c.phase else 0.0
        known = bisect_right(self._clocks, (c.started, 0.0))
        return max(low, self._clocks[known - 1][1]) if known else low

    def _high(self, record: Record) -> float:
        return max(self._phase_high[record.granted_in :], default=0.0)

    def _touch(self, at: At, *, refused: bool = False) -> Partition | None:
        """The share-partition of a call, which held its lock."""
        partition = self.partitions.get(at)
        assert self.call is not None
        if partition is not None and not refused:
            self.low = self._low(partition)
            partition.at, partition.at_phase = self.call.at, self.call.phase
        return partition

    def set_back(self, seconds: float) -> None:
        """The clock was set back: a lock from the future counts as taken now, so it may lapse so much earlier."""
        for partition in self.partitions.values():
            for record in partition.records.values():
                record.low -= seconds if record.state == "held" else 0.0

    @staticmethod
    def _window(partition: Partition) -> Iterator[Record]:
        return (r for o, r in partition.records.items() if o >= partition.spso or r.state == "held")

    # How a delivery ends.

    def _end(self, record: Record, *, unacknowledged: bool, what: str) -> None:
        limits, token = self.settings[record.group].limits_ever, record.token
        record.state, record.token = "avail", ""
        over, certain = max(record.counts) >= min(limits), min(record.counts) >= max(limits)
        record.suspect = unacknowledged and record.fan_out
        if record.suspect and self.left[token] > 1:
            over = certain = False
        if certain and not (unacknowledged and record.fan_out):
            self._give_up(record, "exhausted", self.settings[record.group].dlq_ever)
        elif over:
            record.maybe_over = True
        self._note(record, what)

    def _lapse(self, record: Record) -> None:
        self._end(record, unacknowledged=True, what="the lock lapsed")

    def _give_up(self, record: Record, state: str, dlq: set[bool]) -> None:
        record.state, record.token, record.maybe_over = state, "", False
        record.letter = "maybe" if len(dlq) > 1 else "owed" if True in dlq else "no"

    # SPSO.

    def _spso(self, at: At, partition: Partition, spso: int, lag: int | None, *, still: bool = True) -> None:
        if spso < partition.spso:
            self._fault(f"SPSO went back from {partition.spso} to {spso}", at)
        for offset in range(partition.spso, spso):
            record = partition.records.get(offset)
            if record is None or not record.maybe_done:
                if record is not None and record.state == "held" and self._may_have_lapsed_out(record):
                    self._lapse(record)
                if record is None or not record.maybe_done:
                    self._fault(f"SPSO {spso} passed {offset}, which is not done", at, offset)
                    continue
            if not record.done:
                if self.settings[at[0]].dlq_ever == {True}:
                    self._fault(f"SPSO {spso} passed {offset}, whose letter was not written", at, offset)
                if record.state not in GIVEN_UP:
                    record.state = "exhausted"
                record.letter, record.maybe_over = "no", False
                self._note(record, "SPSO passed it")
        partition.spso = max(partition.spso, spso)
        record = partition.records.get(partition.spso)
        if still and record is not None and record.done:
            self._fault(f"SPSO stays at {spso}, which is done", at, partition.spso)
        if lag is not None and partition.log_end is not None:
            self._lag(at, partition, lag)

    def _may_have_lapsed_out(self, record: Record) -> bool:
        over = max(record.counts) >= min(self.settings[record.group].limits_ever)
        return self._high(record) >= record.low and over

    def completed(self, partition: Partition) -> tuple[int, int]:
        """Least and most records at or above SPSO that are done."""
        window = [r for o, r in partition.records.items() if o >= partition.spso]
        least = sum(r.done for r in window)
        most = sum(r.maybe_done or (r.state == "held" and self._may_have_lapsed_out(r)) for r in window)
        return least, most

    def _lag(self, at: At, partition: Partition, lag: int) -> None:
        least, most = self.completed(partition)
        wholes = [end - partition.spso for end, _ in partition.logs]
        if not any(max(0, whole - most) <= lag <= max(0, whole - least) for whole in wholes):
            self._fault(f"lag {lag}, not of {wholes} without {least} to {most}", at)

    # Operations.

    def _begin(self, at: At, start: int, topic_id: str) -> None:
        old = self.partitions.get(at)
        self.partitions[at] = Partition(start, topic_id, start)
        if old is not None and old.topic_id == topic_id:
            self.partitions[at].logs = set(old.logs)
        if old is not None:
            self.partitions[at].replaced = (old.replaced | {old.topic_id}) - {topic_id}

    def _initialize(self, call: Call) -> None:
        if call.result == [True]:
            at = call.share_partition
            assert at
            if at in self.partitions:
                self._fault("made, though it was there", at)
            self._begin(at, call.args["p_start_offset"], call.args["p_topic_id"])

    def _alter_offsets(self, call: Call) -> None:
        assert call.share_partition
        old = self.partitions.get(call.share_partition)
        if old is not None and call.args["p_topic_id"] in old.replaced:
            self._fault("reset to an id that the topic had before", call.share_partition)
        self._begin(call.share_partition, call.args["p_start_offset"], call.args["p_topic_id"])

    def _delete_offsets(self, call: Call) -> None:
        self._forget(lambda at: at[:2] == (call.args["p_group_id"], call.args["p_topic"]))

    def _delete_group(self, call: Call) -> None:
        self._forget(lambda at: at[0] == call.args["p_group_id"])

    def _forget(self, which: Callable[[At], bool]) -> None:
        """Results stay: a call that is repeated later returns its first result (`requests.sql`)."""
        for at in [a for a in self.partitions if which(a)]:
            del self.partitions[at]

    def _observe(self, call: Call) -> None:
        at = call.share_partition
        partition = self.partitions.get(at) if at else None
        if partition is None or at is None or call.result[0] is None:
            return
        partition.status = call.result[0]
        a = call.args
        if a["p_topic_id"] != partition.topic_id:
            if a["p_topic_id"] in partition.replaced:
                return
            if partition.status == "active":
                self._fault("active under another topic id", at)
            partition.replaced.add(partition.topic_id)
            return
        if partition.status != "active":
            return
        phase, until = partition.observed
        met = phase == call.phase and call.started < until
        partition.logs = (partition.logs if met else set()) | {(a["p_log_end"], a["p_last_stable_offset"])}
        partition.observed = call.phase, max(until, call.finished) if phase == call.phase else call.finished
        for offset in range(partition.spso, a["p_log_start"]):
            record = partition.records.setdefault(offset, Record("fresh", group=at[0]))
            self.lost[at[0]] += not record.done
            if record.state in GIVEN_UP:
                record.letter = {"owed": "maybe", "open": "open"}.get(record.letter, record.letter)
            elif not record.done:
                self.left[record.token] -= 1
                record.state, record.maybe_over = "lost", False
                self._note(record, "retention")
        partition.spso = max(partition.spso, a["p_log_start"])
