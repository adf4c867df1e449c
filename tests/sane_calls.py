"""One sane call of every function that anybody but the owner may call, against one small state.

For the test that changes one argument of each after another to what nobody should send. Whoever adds a function to
``sql/functions`` and grants it adds its call here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.offsets import OffsetSet
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, LeaseOutput, SharePartition

HELD = SharePartition("g", "t", 0)
"""Member m holds [0,10) of 1,000 records and everything is as usual."""
LETTERS = SharePartition("g", "t", 1)
"""Two records are on their way to the dead-letter topic, in the open batch 1."""
COMPACTION = UUID(int=1)
REDRIVE = UUID(int=2)
SERVICE_LEASE = UUID(int=3)

Calls = Mapping[str, Mapping[str, Any]]


def prepare(database: Database) -> Calls:
    """Make the state; return the calls by the functions' names. ``p_…`` that have a default are left out where the
    default is what most callers want."""
    state = State(database)
    for group in ("g", "empty"):
        ensure_group(database, group)
    # Locks that last as long as thousands of calls on a machine that is busy.
    configs = {"errors.deadletterqueue.topic.name": "dlq.g", "share.record.lock.duration.ms": "3600000"}
    alter_group_configs(database, "g", configs)
    for at in (HELD, LETTERS, SharePartition("empty", "t", 0)):
        state.initialize(at, "id", 0, 1)
        state.observe(at, "id", 0, 1000, 1000)
    lease = state.acquire(HELD, "m", None, 10)
    written = state.acquire(LETTERS, "m", None, 4)
    assert lease is not None
    assert written is not None
    state.acknowledge(
        written,
        {AcknowledgeType.ACCEPT: OffsetSet.of((2, 4))},
        outputs=[LeaseOutput("sink", "/lease", 2)],
    )
    state.acknowledge(written, {AcknowledgeType.REJECT: OffsetSet.of((0, 2))})
    assert state.dead_letters.open(LETTERS, 10) is not None
    state.outputs.begin_compaction(COMPACTION, "g", "sink", "/compacted")
    with database.transaction() as connection:
        connection.execute(
            sa.text("select sharequeue.take_service_lease('watch', 'h', cast(:token as uuid), 3600)"),
            {"token": str(SERVICE_LEASE)},
        )
        # Group "members" waits for its first assignment, of nothing.
        connection.execute(
            sa.text(
                "select sharequeue.heartbeat('members', 'm', 0, null, '{t}', '', '', 9, '{1,2,3}', '{1,2,3}',"
                " '{0,0,0}', true)"
            )
        )
        connection.execute(
            sa.text(
                "insert into sharequeue.redrives (redrive_id, dead_letter_topic, topic_id, selection, requested_at)"
                " values (:id, 'dlq.g', 'dlq-id', 'all', sharequeue.clock())"
            ),
            {"id": str(REDRIVE)},
        )
        connection.execute(
            sa.text(
                "select * from sharequeue.open_redrive('dlq.g', 'dlq-id', 0, cast(:id as uuid), '{[0,5)}', 5)"
            ),
            {"id": str(REDRIVE)},
        )
    [ids] = database.rows(
        sa.text(
            "select sp.share_partition_id as id, s.journal_id as snapshot from sharequeue.share_partitions sp"
            " join sharequeue.journal_snapshots s using (share_partition_id)"
            " where sp.group_id = 'g' and sp.partition = 0"
        )
    )
    heartbeat = {
        "p_group_id": "g",
        "p_member_id": "m",
        "p_member_epoch": 0,
        "p_rack_id": "rack",
        "p_subscribed_topic_names": ["t"],
        "p_client_id": "client",
        "p_client_host": "host",
        "p_max_size": 200,
        "p_session_timeout_ms": [1, 2, 3],
        "p_heartbeat_interval_ms": [1, 2, 3],
        "p_assignment_interval_ms": [0, 0, 0],
        "p_assign": True,
        "p_principal": "User:somebody",
    }
    held = {"p_group_id": "g", "p_topic": "t", "p_partition": 0}
    letters = {**held, "p_partition": 1}
    holder = {**held, "p_state_epoch": 1, "p_member_id": "m", "p_member_epoch": None}
    holds = {**holder, "p_token": str(lease.token), "p_request_id": str(UUID(int=7))}
    batch = {"p_firsts": [0], "p_lasts": [2], "p_types": [1]}
    dead = {"p_topic": "dlq.g", "p_topic_id": "dlq-id", "p_partition": 0}
    acl = {
        "p_principal": "User:somebody",
        "p_operation": "READ",
        "p_permission": "ALLOW",
        "p_pattern_type": "LITERAL",
        "p_resource_name": "g",
        "p_resource_type": "GROUP",
    }
    replay = {"p_share_partition_id": ids["id"], "p_snapshot_id": ids["snapshot"]}
    held_many = {"p_group_id": "g", "p_topics": ["t"], "p_partitions": [0]}
    holds_many = {**held_many, "p_state_epochs": [1], "p_member_id": "m", "p_tokens": [str(lease.token)]}
    return {
        # Many share-partitions at once.
        "observe_many": {
            **held_many,
            "p_topic_ids": ["id"],
            "p_log_starts": [0],
            "p_log_ends": [1000],
            "p_last_stable_offsets": [1000],
        },
        "acquire_many": {
            **held_many,
            "p_member_id": "m",
            "p_member_epoch": None,
            "p_max_records": 5,
            "p_request_id": str(UUID(int=10)),
            "p_max_bytes": 1000,
            "p_mean_bytes": [10.0],
        },
        "renew_many": {**holds_many, "p_member_epoch": None},
        "acknowledge_many": {
            **holds_many,
            "p_member_epoch": None,
            "p_request_id": str(UUID(int=11)),
            "p_accepts": ["{[0,3)}"],
            "p_releases": ["{[3,4)}"],
            "p_rejects": ["{[4,5)}"],
            "p_gaps": ["{[5,6)}"],
            "p_outputs": '[[{"sink": "s", "location": "l", "records": 3}]]',
            "p_not_befores": [None],
        },
        "release_many": {
            **held_many,
            "p_member_id": "m",
            "p_tokens": [str(lease.token)],
            "p_suspects": [False],
        },
        # Leases and what becomes of them.
        "acquire": {**holder, "p_max_records": 5, "p_request_id": str(UUID(int=8))},
        "acknowledge": {
            **holds,
            "p_accept": "{[0,3)}",
            "p_release": "{[3,4)}",
            "p_reject": "{[4,5)}",
            "p_gap": "{[5,6)}",
            "p_outputs": '[{"sink": "s", "location": "l", "records": 3}]',
        },
        "acknowledge_batches": {**holds, **batch},
        "acknowledge_and_acquire": {**holds, **batch, "p_max_records": 5, "p_redelivery": "kafka"},
        "acknowledge_and_fetch": {**holds, **batch, "p_type_counts": None, "p_max_records": 5},
        "renew": {**holder, "p_token": str(lease.token)},
        "release": {"p_group_id": "g", "p_member_id": "m"},
        "sweep": {"p_limit": 10},
        # Share-partitions.
        "initialize": {**held, "p_partition": 7, "p_topic_id": "id", "p_start_offset": 0, "p_state_epoch": 1},
        "observe": {
            **held,
            "p_topic_id": "id",
            "p_log_start": 0,
            "p_log_end": 1000,
            "p_last_stable_offset": 1000,
        },
        "alter_offsets": {**held, "p_topic_id": "id", "p_start_offset": 3},
        "reset_offsets": {
            "p_group_id": "empty",
            "p_topics": ["t"],
            "p_partitions": [0],
            "p_topic_ids": ["id"],
            "p_start_offsets": [3],
            "p_execute": True,
        },
        "delete_offsets": {"p_group_id": "empty", "p_topic": "t"},
        "delete_group": {"p_group_id": "empty"},
        "pause": {"p_group_id": "g", "p_reason": "a test"},
        "force": {**held, "p_offsets": "{[0,3)}", "p_act": "release", "p_execute": True},
        "record_report": {"p_group_id": "g"},
        "report_losses": {"p_group_id": "g", "p_topics": ["t"]},
        "claim_group": {"p_group_id": "g", "p_pipeline": "jobs:orders"},
        "remove_reports": {"p_group_id": "g", "p_keep": "90 days"},
        # Dead letters.
        "open_dead_letters": {**letters, "p_max_records": 10},
        "close_dead_letters": {**letters, "p_sequence": 1},
        "dead_letter_attempts": {**letters, "p_sequence": 1},
        "hold_dead_letters": {**letters, "p_reason": "a test"},
        "open_redrive": {**dead, "p_redrive_id": str(REDRIVE), "p_wanted": "{[0,9)}", "p_max_records": 5},
        "trim_redrive": {**dead, "p_sequence": 1, "p_offsets": "{[0,3)}"},
        "close_redrive": {**dead, "p_sequence": 1},
        # Compaction.
        "begin_compaction": {
            "p_compaction_id": str(UUID(int=9)),
            "p_group_id": "g",
            "p_sink": "sink",
            "p_location": "/other",
        },
        "commit_compaction": {"p_compaction_id": str(COMPACTION), "p_replaced": ["/lease"], "p_records": 2},
        "commit_replacement": {
            "p_compaction_id": str(COMPACTION),
            "p_replaced": ["/lease"],
            "p_counted": 2,
            "p_lease_ids": [written.lease_id],
            "p_records": [2],
        },
        "removable_outputs": {"p_group_id": "g", "p_sink": "sink", "p_grace": "1 hour"},
        "forget_compaction": {"p_compaction_id": str(COMPACTION)},
        # What goes on into a table.
        "begin_transfer": {"p_group_id": "g", "p_sink": "sink", "p_claim": "1 minute"},
        "end_transfer": {"p_group_id": "g", "p_sink": "sink", "p_number": 1, "p_location": "sink:delta:/t"},
        "keep_sink_columns": {"p_group_id": "g", "p_sink": "sink", "p_known": "{}", "p_columns": "{}"},
        # The service.
        "add_acl": acl,
        "remove_acls": acl,
        "allow_everyone_if_no_acl_found": {"p_allow": True},
        "create_token": {
            "p_principal": "User:somebody",
            "p_secret_hash": bytes(32),
            "p_lifetime": "90 days",
            "p_note": "a test",
            "p_scopes": ["heartbeat"],
        },
        "principal_of_token": {"p_secret_hash": bytes(32), "p_scope": "heartbeat"},
        "revoke_tokens": {"p_token_id": str(UUID(int=12)), "p_principal": "User:somebody"},
        "beat": {"p_longer_than": "10 seconds"},
        "take_service_lease": {
            "p_task": "watch",
            "p_holder": "h",
            "p_token": str(SERVICE_LEASE),
            "p_seconds": 10.0,
        },
        "hold_service_lease": {"p_task": "watch", "p_token": str(SERVICE_LEASE)},
        "end_service_lease": {"p_task": "watch", "p_token": str(SERVICE_LEASE)},
        "hear_replica": {"p_replica_id": "r", "p_silence": "10 seconds", "p_drains": True},
        "note_service_work": {
            "p_replica_id": "r",
            "p_watched": 1.5,
            "p_swept": 0.2,
            "p_journal_kept": 4,
            "p_drained": 1,
        },
        "service_drains": {},
        "stored_service_configs": {},
        "extend_locks": {"p_amount": "10 minutes"},
        "raise_state_epochs": {},
        "set_service_configs": {"p_configs": '{"group.share.delivery.count.limit": "6"}'},
        "check_cluster": {"p_cluster_id": "a-cluster"},
        "note_topics": {"p_topics": ["t"], "p_topic_ids": ["id"]},
        "confirm_observations": {
            "p_topics": ["t"],
            "p_partitions": [0],
            "p_topic_ids": ["id"],
            "p_log_starts": [0],
            "p_log_ends": [1000],
            "p_last_stable_offsets": [1000],
        },
        "remove_deleted_topics": {"p_gone_for": "0", "p_execute": True},
        "take_snapshot": {"p_share_partition_id": ids["id"]},
        "take_snapshots": {"p_updates": 500},
        "make_journal_partitions": {},
        "drop_journal_partition": {"p_retention": "7 days"},
        "clear_other_journal": {"p_retention": "7 days"},
        "journal_partitions": {},
        "roll_up_journal": {"p_day": "2020-01-01"},
        "roll_up_due_days": {},
        "give_back_room": {},
        "heartbeat": heartbeat,
        "leave_group": {"p_group_id": "members", "p_member_id": "m", "p_principal": "User:somebody"},
        "expire_members": {"p_group_id": "g"},
        "backlog_assignment": {"p_group_id": "g"},
        "keep_alive": {
            "p_group_ids": ["members"],
            "p_member_ids": ["m"],
            "p_member_epochs": [1],
            "p_client_ids": [""],
            "p_client_hosts": ["h"],
            "p_principals": ["User:somebody"],
            "p_session_timeout_ms": [1000, 45000, 60000],
            "p_heartbeat_interval_ms": [1000, 5000, 15000],
        },
        "rebalance_group": {"p_group_id": "members", "p_group_epoch": 1},
        "refresh_group": {"p_group_id": "g", "p_assignment_interval_ms": [0, 0, 0]},
        "assign_share_partitions": {
            "p_group_id": "members",
            "p_group_epoch": 2,
            "p_member_ids": ["m"],
            "p_share_partition_ids": [ids["id"]],
        },
        "assignable_share_partitions": {"p_group_id": "g"},
        "assignment_of": {"p_group_id": "g", "p_member_id": "m"},
        "metadata_hash": {"p_group_id": "g"},
        "raise_group_epoch": {"p_group_id": "g", "p_subscription_changed": True},
        # Readers.
        "needed_outputs": {"p_lease_ids": [1]},
        "sink_owners": {"p_folders": ["/output/orders"]},
        "replay_batches": replay,
        "replay_leases": replay,
        "replay_outcomes": replay,
        "replay_share_partition": replay,
        "snapshots": {"p_share_partition_id": ids["id"]},
        "stored_configs": {"p_group_id": "g"},
        "verify": {"p_group_id": "g"},
        "verify_journal": {"p_group_id": "g"},
        "clock": {},
        "authorized_operations": {"p_group_id": "g"},
        "authorized_topic_operations": {"p_topic": "t"},
        "principal": {},
        "state_id": {},
        "require_read_committed": {},
        "schema_version": {},
        # What views are made of.
        "records": {"p_offsets": "{[0,3)}"},
        "offsets_of": {"p_first": 0, "p_last": 9, "p_offsets": None},
        "groups_of_topics": {"p_topics": ["t"]},
        "topics_redriven_for_others": {"p_group_id": "g"},
        "worker_group_configs": {"p_group_id": "g"},
    }
