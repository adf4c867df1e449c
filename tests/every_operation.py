"""Every operation that a worker may call, once each, in the order of a record's life.

For what must hold whichever way the database is reached: as another role, through a pooler, on another version.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.groups.acls import authorized_operations, authorized_topic_operations
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.offsets import OffsetSet
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, SharePartition

CALLED_BY_WORKERS = {
    *("initialize", "observe", "acquire", "acknowledge", "acknowledge_batches", "acknowledge_and_acquire"),
    *("acknowledge_and_fetch", "renew", "release", "sweep", "open_dead_letters", "close_dead_letters"),
    *("dead_letter_attempts", "hold_dead_letters", "service_drains", "stored_service_configs"),
    *("begin_compaction", "commit_compaction", "removable_outputs", "forget_compaction"),
    *("commit_replacement", "begin_transfer", "end_transfer", "keep_sink_columns"),
    *("acknowledge_many", "acquire_many", "observe_many", "release_many", "renew_many"),
    *("record_report", "pause", "force", "alter_offsets", "reset_offsets", "delete_offsets", "delete_group"),
    *("check_cluster", "clock", "principal", "schema_version", "state_id", "topics_redriven_for_others"),
    *("authorized_operations", "authorized_topic_operations"),
    *(
        "claim_group",
        "report_losses",
        "stored_configs",
        "remove_reports",
        "journal_partitions",
        "roll_up_journal",
    ),
}

WITHOUT_A_METHOD = (
    "acquire(:group, :topic, 0, 1, 'member', null, 4)",
    "acknowledge_batches(:group, :topic, 0, 1, 'member', null, null, null, '{6}', '{6}', '{1}')",
    "acknowledge_and_acquire(:group, :topic, 0, 1, 'member', null, null, null, '{7}', '{7}', '{1}', 5, 'kafka')",
    "acknowledge_and_fetch(:group, :topic, 0, 1, 'member', null, null, null, '{8}', '{8}', '{1}', null, 5)",
)


def start(service: Database, worker: Database, group: str, topic: str) -> SharePartition:
    """A share-partition with a thousand records."""
    ensure_group(service, group)
    at = SharePartition(group, topic, 0)
    assert State(worker).initialize(at, "id", 0, 1)
    State(worker).observe(at, "id", 0, 1000, 1000)
    return at


def call_every_operation(
    service: Database, worker: Database, reader: Database, group: str, topic: str
) -> None:
    """From the first offset to the last dead letter and the end of the group, every invariant holding before it."""
    at = start(service, worker, group, topic)
    alter_group_configs(service, group, {"errors.deadletterqueue.topic.name": "dlq.letters"})
    state = State(worker)
    lease = state.acquire(at, "member", None, 10)
    assert lease is not None
    state.acknowledge(lease, {AcknowledgeType.ACCEPT: OffsetSet.of((0, 5))})
    state.renew(lease)
    state.acknowledge(lease, {AcknowledgeType.REJECT: OffsetSet.of((5, 6))})
    assert state.release(group, "member") == 4
    letters = state.dead_letters.open(at, 10)
    assert letters is not None
    assert [each.member_id for each in state.dead_letters.attempts(at, letters.sequence)] == ["member"]
    state.dead_letters.hold(at, "a test")
    assert [each.reason for each in State(reader).dead_letters.held(group)] == ["a test"]
    assert state.dead_letters.close(at, letters.sequence) == 1
    assert State(reader).dead_letters.held(group) == []
    assert state.dead_letters.topics_redriven_for_others(group) == set()
    state.dead_letters.service_drains()
    assert ServiceConfigs.stored(worker) == ServiceConfigs.stored(service)
    state.sweep()
    compaction_id = UUID(int=1)
    state.outputs.begin_compaction(compaction_id, group, "sink", "/folder")
    assert state.outputs.commit_compaction(compaction_id, [], 0) == 0
    assert state.outputs.commit_replacement(compaction_id, [], 0, {}) == 0
    assert state.outputs.removable(group, "sink", timedelta(0)) == {compaction_id: []}
    assert state.outputs.forget_compaction(compaction_id)
    assert state.outputs.begin_transfer(group, "sink", timedelta(0)) is None
    assert state.outputs.end_transfer(group, "sink", 1, "/table") == 0
    assert state.outputs.keep_columns(group, "sink", None, "{}") == "{}"
    state.now()
    assert "READ" in authorized_operations(worker, group)
    assert authorized_topic_operations(worker, topic) == ["READ", "DESCRIBE"]
    readers = State(reader).outputs
    assert (readers.owners(["/output/orders"]), readers.needed([0])) == ({}, (set(), set()))
    assert state.outputs.state_id() == State(reader).outputs.state_id()
    for call in WITHOUT_A_METHOD:
        [row] = worker.rows(
            sa.text(f"select * from sharequeue.{call}"),  # noqa: S608 - one of four
            group=group,
            topic=topic,
        )
        assert not row["error_code"], row
        assert not row.get("acknowledge_error_code"), row
    worker.rows(sa.text("select sharequeue.record_report(:group)"), group=group)
    assert state.runs.claim(group, "jobs:orders") == "jobs:orders"
    assert state.runs.losses(group, [topic]) == 0
    worker.rows(sa.text("select sharequeue.remove_reports(:group, interval '90 days')"), group=group)
    worker.rows(sa.text("select * from sharequeue.journal_partitions()"))
    worker.rows(sa.text("select sharequeue.roll_up_journal(sharequeue.clock()::date)"))
    forced = sa.text("select * from sharequeue.force(:group, :topic, 0, '{[9,10)}', 'release', true)")
    worker.rows(forced, group=group, topic=topic)
    state.administration.pause(group, "a test")
    state.administration.pause(group, None)
    assert State(reader).figures.verify(group) == []
    state.administration.alter_offsets(at, "id", 3)
    reset = sa.text(
        "select * from sharequeue.reset_offsets(:group, array[:topic], '{0}', '{id}', '{7}', true)"
    )
    worker.rows(reset, group=group, topic=topic)
    assert [each.spso for each in State(reader).figures.describe(group)] == [7]
    assert State(reader).figures.verify(group) == []
    assert state.administration.delete_offsets(group, topic) == 1
    assert state.administration.delete_group(group)
