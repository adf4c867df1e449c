"""Call the operations that `tests.operations` describes, in a state in which every call succeeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from tests import single
from tests.fixtures.stack import LOCK_BOUNDS
from tests.hostile import Function, functions
from tests.operations import (
    ARGUMENTS,
    COMPACTION,
    HELD,
    LETTERS,
    OPERATIONS,
    PUBLICATION,
    REDRIVE,
    REFUSED_PUBLICATION,
    SERVICE_LEASE,
    Known,
    may_call,
)

_MADE_IN_SQL = (
    "select sharequeue.take_service_lease('watch', 'h', cast(:lease as uuid), 3600)",
    # Group "members" waits for its first assignment, of nothing.
    "select sharequeue.heartbeat('members', 'm', 0, null, '{t}', '', '', 9, '{1,2,3}', '{1,2,3}', '{0,0,0}', true)",
    "insert into sharequeue.redrives (redrive_id, dead_letter_topic, topic_id, requested_at)"
    " values (cast(:redrive as uuid), 'dlq.g', 'dlq-id', sharequeue.clock())",
    "select * from sharequeue.open_redrive('dlq.g', 'dlq-id', 0, cast(:redrive as uuid), '{[0,5)}', 5)",
    "insert into sharequeue.publications (publication_id, group_id, sink, replay, begun_at)"
    " select cast(p.id as uuid), 'g', 'sink', p.id, sharequeue.clock()"
    " from unnest(array[:publication, :refused]) as p (id)",
)


def prepare(database: Database) -> Mapping[str, Any]:
    """Make the state in which every call succeeds; return its values by their names."""
    state = State(database)
    bounds = sa.text("select sharequeue.set_service_configs(cast(:configs as jsonb))")
    database.rows(bounds, configs=json.dumps(LOCK_BOUNDS))
    for group in ("g", "empty"):
        ensure_group(database, group)
    # Locks that last as long as thousands of calls on a machine that is busy.
    configs = {"errors.deadletterqueue.topic.name": "dlq.g", "share.record.lock.duration.ms": "3600000"}
    alter_group_configs(database, "g", configs)
    for at in (HELD, LETTERS, SharePartition("empty", "t", 0)):
        state.initialize(at, "id", 0, 1)
        single.observe(state, at, "id", 0, 1000, 1000)
    lease = single.acquire(state, HELD, "m", None, 10)
    written = single.acquire(state, LETTERS, "m", None, 4)
    assert lease is not None
    assert written is not None
    single.acknowledge(
        state,
        written,
        {AcknowledgeType.ACCEPT: OffsetSet.of((2, 4))},
        outputs=[LeaseOutput("sink", "/lease", 2)],
    )
    single.acknowledge(state, written, {AcknowledgeType.REJECT: OffsetSet.of((0, 2))})
    assert state.dead_letters.open(LETTERS, 10) is not None
    state.outputs.begin_compaction(COMPACTION, "g", "sink", "/compacted")
    with database.transaction() as connection:
        for statement in _MADE_IN_SQL:
            named = {"lease": str(SERVICE_LEASE), "redrive": str(REDRIVE)}
            published = {"publication": str(PUBLICATION), "refused": str(REFUSED_PUBLICATION)}
            connection.execute(sa.text(statement), {**named, **published})
    [ids] = database.rows(
        sa.text(
            "select sp.share_partition_id as id, s.journal_id as snapshot from sharequeue.share_partitions sp"
            " join sharequeue.journal_snapshots s using (share_partition_id)"
            " where sp.group_id = 'g' and sp.partition = 0"
        )
    )
    return {
        "token": str(lease.token),
        "lease_id": written.lease_id,
        "share_partition_id": ids["id"],
        "snapshot": ids["snapshot"],
    }


def sane(function: Function, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the call of a function that succeeds in the prepared state."""
    own = OPERATIONS[function.name].given
    return {
        each.name: _resolved(own[each.name] if each.name in own else ARGUMENTS[each.name].value, known)
        for each in function.arguments
        if each.name in own or not each.has_default
    }


def _resolved(value: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_resolved(one, known) for one in value]
    return known[value.name] if isinstance(value, Known) else value


def call_every_operation(database: Database, prepared: Database | None = None, role: str = "service") -> None:
    """Call every operation that a role may call, each in a transaction that is taken back; none may be refused.

    For what must hold whichever way ``database`` is reached: as another role, through a pooler, on another version.
    ``prepared`` is where the state is made, if another login has to make it.
    """
    made = prepared or database
    known = prepare(made)
    for function in (each for each in functions(made) if each.name in may_call(role)):
        given = sane(function, known)
        with database.engine.connect() as connection:
            rows = connection.execute(function.call(given), given).mappings().all()
            refused = [row for row in rows if row.get("error_code")]
            assert refused == [], f"{function.name}: {refused}"
            connection.rollback()


def start(service: Database, worker: Database, group: str, topic: str) -> SharePartition:
    """Make a share-partition with a thousand records; return where."""
    ensure_group(service, group)
    at = SharePartition(group, topic, 0)
    assert State(worker).initialize(at, "id", 0, 1)
    single.observe(State(worker), at, "id", 0, 1000, 1000)
    return at
