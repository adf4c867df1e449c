"""What a round acknowledges of its leases, and what is known of them: what the files have, where the sink put the
rows, and the state's replies.

The leases of a round are sent together, in a few calls, or one by one, each in the sink's transaction. Then their
releases are noted, and the files that do not count are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sharequeue.domain.offsets import EMPTY
from sharequeue.domain.values import Acknowledged, AcknowledgeType, KeptRecords, Lease, LeaseOutput
from sharequeue.spark.kept_records import few_released
from sharequeue.spark.leasing.renewal import LeaseKeeper, release_held
from sharequeue.spark.open_run import OpenRun
from sharequeue.spark.outcomes.acknowledging import RowsRefused, acknowledge, acknowledge_all, to_send
from sharequeue.spark.outcomes.outcomes import Acknowledgement, SeenOutcomes
from sharequeue.spark.output.folders import no_files, remove_lease
from sharequeue.spark.output.lease_files import WrittenFiles
from sharequeue.spark.sinks.interface import AcceptedRows, Refused
from sharequeue.state.calls import LeaseAcknowledgement


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """What is to be acknowledged of a lease: its accepted rows, the outcomes of its records, its other outputs, and
    the raw records that it keeps.
    """

    rows: AcceptedRows
    acknowledgement: Acknowledgement
    others: Sequence[LeaseOutput]
    kept: KeptRecords | None


@dataclass(slots=True, eq=False)
class LeaseResults:
    """The results of the leases of one round, by lease id."""

    run: OpenRun
    keeper: LeaseKeeper
    seen: dict[int, SeenOutcomes] = field(default_factory=dict)
    """What the files have."""
    raw: dict[int, KeptRecords] = field(default_factory=dict)
    """The raw records in files."""
    raw_folders: dict[int, str] = field(default_factory=dict)
    """The folders of raw records, also of those that cannot be kept."""
    sent: dict[int, Acknowledgement] = field(default_factory=dict)
    """The acknowledgements that were accepted."""
    acknowledged: dict[int, Acknowledged] = field(default_factory=dict)
    """The state's replies to them."""

    def result(
        self,
        lease: Lease,
        written: WrittenFiles,
        wanted: Acknowledgement,
        summaries: Mapping[str, Mapping[int, str]],
    ) -> LeaseResult:
        """Return what is to be acknowledged of a lease that was read back: `summaries` has the folders of its partial
        sums, by sink and lease id.
        """
        at, name = lease.lease_id, self.run.lease_files.names.exceptions
        of_lease = self.seen[at]
        exceptions = self._in_files(name, lease, written.exceptions.get(at))
        sums = (
            LeaseOutput(summary, folders[at], of_lease.accepted_rows)
            for summary, folders in summaries.items()
            if at in folders
        )
        records = of_lease.outcomes.get(AcknowledgeType.ACCEPT, EMPTY).count
        rows = AcceptedRows(lease, written.accepted.get(at), of_lease.accepted_rows, records)
        outputs = [LeaseOutput(name, exceptions, of_lease.exceptions), *sums]
        kept = few_released(lease, wanted, self.raw.get(at))
        return LeaseResult(rows, wanted, outputs, kept)

    def send(self, results: Sequence[LeaseResult]) -> Refused:
        """Acknowledge these leases, in the way of the sink; return the records that it refuses."""
        return self._send_together(results) if self.run.sink.together else self._send_one_by_one(results)

    def note_releases(self, leases: Sequence[Lease]) -> None:
        """Note how often the run has released the records of these leases, as far as they were acknowledged."""
        lost = []
        for lease in leases:
            if (reply := self.acknowledged.get(lease.lease_id)) is None:
                continue
            sent = self.sent[lease.lease_id]
            released = sent.outcomes.get(AcknowledgeType.RELEASE, EMPTY)
            self.run.releases.add(lease.share_partition, released, reply.spso)
            if sent.lost:
                lost.append(lease)
        # Offsets below the log start can no longer be acknowledged; such a lease ends without an acknowledgement.
        if lost:
            release_held(self.run.source.state, lost)

    def _send_together(self, results: Sequence[LeaseResult]) -> Refused:
        given = [self._placed(each) for each in results]
        replies = acknowledge_all(self.keeper, given)
        for each, sent, reply in zip(results, given, replies, strict=True):
            self._note(each, sent, reply)
        return {}

    def _send_one_by_one(self, results: Sequence[LeaseResult]) -> Refused:
        sink, state = self.run.sink, self.run.source.state
        refused: dict[int, Mapping[int, str]] = {}
        for each in results:
            with self.keeper.acknowledging([each.rows.lease]) as (lease,):
                kept = replace(each, rows=replace(each.rows, lease=lease))
                given = self._placed(kept)
                try:
                    reply = acknowledge(state, given, partial(sink.transaction, rows=kept.rows))
                except RowsRefused as error:
                    refused[lease.lease_id] = error.reasons
                    continue
                self.keeper.forget(lease)
            self._note(kept, given, reply)
        return refused

    def _placed(self, result: LeaseResult) -> LeaseAcknowledgement:
        """Let the sink put the accepted rows of a lease; return its acknowledgement with their place."""
        rows, sink = result.rows, self.run.job.sink
        place = self.run.sink.put(rows) or self._in_files(sink, rows.lease, rows.folder)
        output = LeaseOutput(sink, place, rows.count)
        return to_send(rows.lease, result.acknowledgement, [output, *result.others], result.kept)

    def _in_files(self, sink: str, lease: Lease, folder: str | None) -> str:
        """Return the location in the manifest of rows that stay in their folder, or of a lease without any."""
        source = self.run.source
        return folder or no_files(source.settings, source.state, sink, lease.lease_id)

    def _note(self, result: LeaseResult, given: LeaseAcknowledgement, reply: Acknowledged) -> None:
        """Note that a lease was acknowledged. Remove its files if its rows are elsewhere now, and its raw records if
        they are not kept; if the run is killed before that, the sweep removes them.
        """
        at, folder = given.lease.lease_id, result.rows.folder
        self.sent[at], self.acknowledged[at] = result.acknowledgement, reply
        if folder is not None and not given.outputs[0].location.endswith(folder):
            remove_lease(self.run.files, folder)
        if result.kept is None and at in self.raw_folders:
            remove_lease(self.run.files, self.raw_folders[at])
