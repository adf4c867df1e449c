"""The outputs of a sink that count, their compaction, and their transfer into a table.

This is the manifest: an output counts from the commit of its acknowledgement on. A compaction is announced before
anything is written, the manifest switches to the new folder in one transaction, and the replaced folders are returned
to the sweep. ``sharequeue.spark.output.compaction`` moves the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import OutputRow, StateIdentity, Transfer, WaitingResults


def _places(offsets: Mapping[tuple[str, int], OffsetSet]) -> dict[str, Any]:
    return {
        "topics": [topic for topic, _ in offsets],
        "partitions": [partition for _, partition in offsets],
        "offsets": [str(some) for some in offsets.values()],
    }


class Outputs:
    """The manifest of a sink's outputs, and its compaction; ``State.outputs``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._identity: StateIdentity | None = None

    def check_identity(self) -> StateIdentity:
        """Return the identity of this state. Raises InconsistentClusterId if this database is a copy of the state's
        own.
        """
        rows = self._database.call(sa.text("select * from sharequeue.check_identity()"))
        own, *former = rows
        self._identity = StateIdentity(
            UUID(str(own["state_id"])),
            UUID(str(own["origin_id"])),
            own["bound_at"],
            {UUID(str(row["state_id"])): row["last_lease_id"] for row in former},
        )
        return self._identity

    def identity(self) -> StateIdentity:
        """Return the identity as `check_identity` has last found it."""
        return self._identity or self.check_identity()

    def mark(self, group_id: str, folder: str, seen: Sequence[UUID]) -> tuple[UUID, datetime]:
        """Announce a mark that is about to be set in the folder of a sink, in which these marks were found; return it
        with its time.
        """
        rows = self._database.rows(
            sa.text("select * from sharequeue.mark_sink(:group_id, :folder, cast(:seen as uuid[]))"),
            group_id=group_id,
            folder=folder,
            seen=[str(mark) for mark in seen],
        )
        return UUID(str(rows[0]["mark"])), rows[0]["marked_at"]

    def known_marks(self, marks: Sequence[UUID]) -> set[UUID]:
        """Return those of these marks that this database has set."""
        rows = self._database.rows(
            sa.text("select sharequeue.known_marks(cast(:marks as uuid[])) as mark"),
            marks=[str(mark) for mark in marks],
        )
        return {UUID(str(row["mark"])) for row in rows}

    def counted(self, group_id: str, sink: str) -> list[OutputRow]:
        """Return the outputs of a sink that count: the manifest that its readers use."""
        rows = self._database.rows(
            sa.text(
                "select lease_id, topic, partition, location, records, acknowledged_at, topic_id"
                " from sharequeue.counted_outputs where group_id = :group_id and sink = :sink order by lease_id"
            ),
            group_id=group_id,
            sink=sink,
        )
        return [OutputRow(**row) for row in rows]

    def owners(self, folders: Sequence[str]) -> dict[str, str]:
        """Return the owner of each folder of sinks: the group that first had an output there that counts."""
        rows = self._database.rows(
            sa.text("select folder, group_id from sharequeue.sink_owners(cast(:folders as text[]))"),
            folders=list(folders),
        )
        return {row["folder"]: row["group_id"] for row in rows}

    def needed(self, lease_ids: Iterable[int]) -> tuple[set[int], set[tuple[str, int]], set[int]]:
        """Return which of these leases are held, which have files that count in which sink, and which have kept
        records, of any group. Files of other leases are not needed.
        """
        rows = self._database.rows(
            sa.text(
                "select lease_id, held, sink, kept from sharequeue.needed_outputs(cast(:lease_ids as bigint[]))"
            ),
            lease_ids=list(lease_ids),
        )
        held = {row["lease_id"] for row in rows if row["held"]}
        counted = {(row["sink"], row["lease_id"]) for row in rows if row["sink"] is not None}
        return held, counted, {row["lease_id"] for row in rows if row["kept"]}

    def newest(self, group_id: str, sink: str) -> OutputRow | None:
        """Return a sink's newest output, by lease, that counts and has records; None without one."""
        rows = self._database.rows(
            sa.text(
                "select lease_id, topic, partition, location, records, acknowledged_at, topic_id"
                " from sharequeue.counted_outputs where group_id = :group_id and sink = :sink and records > 0"
                " order by lease_id desc limit 1"
            ),
            group_id=group_id,
            sink=sink,
        )
        return OutputRow(**rows[0]) if rows else None

    def sinks(self, group_id: str) -> list[str]:
        """Return the sinks of a group with outputs that count."""
        rows = self._database.rows(
            sa.text(
                "select distinct sink from sharequeue.counted_outputs where group_id = :group_id order by sink"
            ),
            group_id=group_id,
        )
        return [row["sink"] for row in rows]

    def begin_transfer(self, group_id: str, sink: str, claim: timedelta) -> Transfer | None:
        """Return the next transfer, claimed for this duration unless it is `busy`; None if nothing waits.

        It stays the same, under its number, until `end_transfer`: repeating it repeats exactly the same work.
        """
        rows = self._database.call(
            sa.text("select * from sharequeue.begin_transfer(:group_id, :sink, cast(:claim as interval))"),
            group_id=group_id,
            sink=sink,
            claim=claim,
        )
        if not rows:
            return None
        row = rows[0]
        sources = zip(row["topics"], row["partitions"], strict=True)
        locations = dict(zip(row["locations"], sources, strict=True))
        return Transfer(row["number"], locations, row["records"], row["busy"])

    def waiting(self, group_id: str, sink: str) -> dict[tuple[str, int], int]:
        """Return the records that wait for a sink's target, by topic and partition."""
        rows = self._database.rows(
            sa.text(
                "select topic, partition, cast(sum(records) as bigint) as records from sharequeue.counted_outputs"
                " where group_id = :group_id and sink = :sink and starts_with(location, 'sink:pending:')"
                " group by topic, partition"
            ),
            group_id=group_id,
            sink=sink,
        )
        return {(row["topic"], row["partition"]): row["records"] for row in rows}

    def waiting_results(self, group_ids: Sequence[str]) -> list[WaitingResults]:
        """Return the rows of these groups that wait for the table or topic of their sink, by group and sink."""
        rows = self._database.rows(
            sa.text(
                "select group_id, sink, rows, oldest_at, number, held_reason, held_since"
                " from sharequeue.waiting_results where group_id = any (cast(:groups as text[]))"
                " order by group_id, sink"
            ),
            groups=list(group_ids),
        )
        return [WaitingResults(**row) for row in rows]

    def renew_transfer(self, group_id: str, sink: str, number: int, claim: timedelta) -> bool:
        """Extend the claim of a transfer; return False if it has ended."""
        rows = self._database.call(
            sa.text(
                "select sharequeue.renew_transfer(:group_id, :sink, :number, cast(:claim as interval)) as renewed"
            ),
            group_id=group_id,
            sink=sink,
            number=number,
            claim=claim,
        )
        return bool(rows[0]["renewed"])

    def hold_transfer(self, group_id: str, sink: str, number: int, reason: str | None) -> bool:
        """Record why a transfer could not be finished; None removes the reason. Return False if it has ended."""
        rows = self._database.call(
            sa.text("select sharequeue.hold_transfer(:group_id, :sink, :number, :reason) as held"),
            group_id=group_id,
            sink=sink,
            number=number,
            reason=reason,
        )
        return bool(rows[0]["held"])

    def end_transfer(self, group_id: str, sink: str, number: int, location: str) -> int:
        """Count the outputs of a transfer at the location that has taken it; return how many they are, 0 if it has
        already ended.
        """
        rows = self._database.call(
            sa.text("select sharequeue.end_transfer(:group_id, :sink, :number, :location) as moved"),
            group_id=group_id,
            sink=sink,
            number=number,
            location=location,
        )
        return int(rows[0]["moved"])

    def resume_results(self, group_id: str, sink: str, number: int, location: str | None) -> int:
        """Decide about a transfer that is held: count it as written at a location, or, with None, let the next run
        send it. The audit log has the decision. Return the number of outputs that count as written.

        Raises InvalidRequest if the transfer is not held.
        """
        rows = self._database.call(
            sa.text("select sharequeue.resume_results(:group_id, :sink, :number, :location) as counted"),
            group_id=group_id,
            sink=sink,
            number=number,
            location=location,
        )
        if rows[0]["counted"] is None:
            raise InvalidRequest(
                f"No results of sink {sink!r} of group {group_id} are held under the number {number}, so there is "
                "nothing to decide: `sharequeue results list` shows what waits."
            )
        return int(rows[0]["counted"])

    def keep_columns(
        self, group_id: str, sink: str, known: str | None = None, columns: str | None = None
    ) -> str | None:
        """Store the columns of a sink's files, unless the stored ones differ from `known`; without `columns` nothing
        changes. Return the stored columns.
        """
        rows = self._database.call(
            sa.text("select sharequeue.keep_sink_columns(:group_id, :sink, :known, :columns) as kept"),
            group_id=group_id,
            sink=sink,
            known=known,
            columns=columns,
        )
        kept: str | None = rows[0]["kept"]
        return kept

    def begin_compaction(self, compaction_id: UUID, group_id: str, sink: str, location: str) -> None:
        """Announce that a folder will be written, so that a sweep finds it in any case."""
        self._database.call(
            sa.text("select sharequeue.begin_compaction(cast(:id as uuid), :group_id, :sink, :location)"),
            id=str(compaction_id),
            group_id=group_id,
            sink=sink,
            location=location,
        )

    def commit_compaction(self, compaction_id: UUID, replaced: Sequence[str], records: int) -> int:
        """Count the new folder with its `records` instead of the replaced ones; return its number of leases.

        Raises InvalidRequest and changes nothing if a sweep has given the compaction up, or if the old folders no
        longer count that many records.
        """
        rows = self._database.call(
            sa.text(
                "select sharequeue.commit_compaction(cast(:id as uuid), cast(:replaced as text[]), :records) as moved"
            ),
            id=str(compaction_id),
            replaced=list(replaced),
            records=records,
        )
        return int(rows[0]["moved"])

    def begin_publication(
        self, group_id: str, sink: str, replay: str, records: Mapping[tuple[str, int], tuple[str, OffsetSet]]
    ) -> UUID:
        """Announce that a replay takes the place of these records: topic id and offsets by topic and partition.

        Return the id of the publication. Raises InvalidRequest while a redrive of one of these records is under way.
        """
        rows = self._database.call(
            sa.text(
                "select sharequeue.begin_publication(:group_id, :sink, :replay, cast(:topics as text[]),"
                " cast(:topic_ids as text[]), cast(:partitions as integer[]), cast(:offsets as int8multirange[]))"
                " as publication_id"
            ),
            group_id=group_id,
            sink=sink,
            replay=replay,
            topic_ids=[topic_id for topic_id, _ in records.values()],
            **_places({at: some for at, (_, some) in records.items()}),
        )
        return UUID(str(rows[0]["publication_id"]))

    def end_publication(self, publication_id: UUID, with_rows: Mapping[tuple[str, int], OffsetSet]) -> None:
        """Record that the rows were replaced, and which records have rows now."""
        self._database.call(
            sa.text(
                "select sharequeue.end_publication(cast(:id as uuid), cast(:topics as text[]),"
                " cast(:partitions as integer[]), cast(:offsets as int8multirange[]))"
            ),
            id=str(publication_id),
            **_places(with_rows),
        )

    def forget_publication(self, publication_id: UUID) -> None:
        """Forget a publication that has changed nothing."""
        self._database.call(
            sa.text("select sharequeue.forget_publication(cast(:id as uuid))"), id=str(publication_id)
        )

    def commit_replacement(
        self, compaction_id: UUID, replaced: Sequence[str], counted: int, records: Mapping[int, int]
    ) -> int:
        """Count the new folder instead of these, which count this number of records, with new `records` per lease.

        Return the number of leases. Raises InvalidRequest as `commit_compaction`, and if `records` lacks a lease of
        the folders.
        """
        rows = self._database.call(
            sa.text(
                "select sharequeue.commit_replacement(cast(:id as uuid), cast(:replaced as text[]), :counted,"
                " cast(:lease_ids as bigint[]), cast(:records as bigint[])) as moved"
            ),
            id=str(compaction_id),
            replaced=list(replaced),
            counted=counted,
            lease_ids=list(records),
            records=list(records.values()),
        )
        return int(rows[0]["moved"])

    def removable(self, group_id: str, sink: str, grace: timedelta) -> dict[UUID, list[str]]:
        """Return the folders that no reader needs any more, by compaction.

        These are folders that were replaced longer ago than the grace period, and new folders of compactions that
        took longer than the grace period: such a compaction is given up.
        """
        rows = self._database.call(
            sa.text("select * from sharequeue.removable_outputs(:group_id, :sink, cast(:grace as interval))"),
            group_id=group_id,
            sink=sink,
            grace=grace,
        )
        return {UUID(str(row["compaction_id"])): list(row["folders"]) for row in rows}

    def forget_compaction(self, compaction_id: UUID) -> bool:
        """Delete a compaction whose folders were removed; return whether it was known."""
        rows = self._database.call(
            sa.text("select sharequeue.forget_compaction(cast(:id as uuid)) as known"), id=str(compaction_id)
        )
        return bool(rows[0]["known"])
