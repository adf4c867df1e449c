"""The results of the leases of a round: what the files have, what is acknowledged, and the state's replies.

The leases of a round are sent together, in a few calls, or one by one, each in the sink's transaction. Then their
releases are noted, and the files that do not count are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.offsets import EMPTY
from sharequeue.domain.values import Acknowledged, AcknowledgeType, KeptRecords, Lease, LeaseOutput
from sharequeue.kafka.topics import TopicInfo
from sharequeue.spark.kept_records import few_released, kept_in
from sharequeue.spark.leasing.renewal import LeaseKeeper, release_held
from sharequeue.spark.open_run import OpenRun
from sharequeue.spark.ordering.cut import Cut
from sharequeue.spark.outcomes.acknowledging import RowsRefused, acknowledge, acknowledge_all, to_send
from sharequeue.spark.outcomes.first_failure import find_first_failure
from sharequeue.spark.outcomes.outcomes import (
    UNSEEN,
    Acknowledgement,
    SeenOutcomes,
    acknowledgements,
    read_back,
    refuse_other_partitions,
)
from sharequeue.spark.output.folders import no_files, remove_lease
from sharequeue.spark.output.lease_files import WrittenFiles
from sharequeue.spark.output.shared_folder import all_read_back
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
    """The results of one round, by lease id."""

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

    def read_back(
        self,
        leases: Sequence[Lease],
        written: WrittenFiles,
        columns: Collection[str],
        cut: Cut | None,
        infos: Mapping[str, TopicInfo],
    ) -> dict[int, Acknowledgement]:
        """Return the acknowledgements of these leases by what their files have, by lease id. `columns` are those of
        the handler's result. What is behind the `cut` of a group ordered by key is held.

        Leases of partitions that have lost their leader are given back without a delivery if a record may be missing:
        whether it is a gap is not known. They have no acknowledgement.
        """
        run, files = self.run, self.run.lease_files
        found = read_back(files.spark, written.folders, delays="not_before" in columns, files=run.files)
        all_read_back(run.job.sink, written.rows, sum(of_lease.rows for of_lease in found.values()))
        refuse_other_partitions(leases, found)
        found = found if cut is None else cut.applied(found)
        new = {at: folder for at, folder in written.kept.items() if at not in self.raw}
        self.raw |= kept_in(files.spark, run.files, new)
        if new.keys() - self.raw.keys():  # several rows for a record
            run.handler.known.takes_raw = False
        wanted = self._wanted(leases, found, infos)
        if run.failure is None:
            run.failure = find_first_failure(files.spark, run.files, written.exceptions.values())
        self.seen.update({lease.lease_id: found.get(lease.lease_id, UNSEEN) for lease in leases})
        return wanted

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

    def _wanted(
        self,
        leases: Sequence[Lease],
        found: Mapping[int, SeenOutcomes],
        infos: Mapping[str, TopicInfo],
    ) -> dict[int, Acknowledgement]:
        run = self.run
        try:
            return acknowledgements(run.source, leases, found, infos, run.job.without_row)
        except (BrokerNotAvailable, PySparkException, Py4JError) as error:
            away = run.source.unread([error], (lease.share_partition for lease in leases))
            if not away:
                raise
        run.lost_leader |= away
        self.keeper.give_back([lease for lease in leases if lease.share_partition in away], refund=True)
        readable = [lease for lease in leases if lease.share_partition not in away]
        return self._wanted(readable, found, infos)

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
