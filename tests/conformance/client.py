"""What an ordinary client gets in a recorded scenario, step by step.

A poll, a commit, a close as the operations on the state that a client makes of them: what it holds, what it has
yet to acknowledge, and what it returns to the script, in the recording's words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sharequeue.domain.errors import ShareError
from tests.conformance.scenario import Step
from tests.oracle import AcknowledgementBatch, AcknowledgeType, AcquireMode, SharePartition

if TYPE_CHECKING:
    from tests.conformance.stage import Stage

ACCEPT, GAP, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.GAP, AcknowledgeType.RENEW
AT = SharePartition("g", "t", 0)
"""Every recorded client works on one share-partition."""


@dataclass(slots=True)
class Client:
    """One ordinary client: what its last poll returned, by delivery count, and what it will acknowledge."""

    member_id: str
    explicit: bool
    record_limit: bool
    max_records: int
    held: dict[int, int] = field(default_factory=dict)
    results: dict[int, AcknowledgeType] = field(default_factory=dict)
    renewed: dict[int, int] = field(default_factory=dict)


def carry_out(stage: Stage, step: Step) -> tuple[Any, Any]:
    """One step of a client, on the engine; return what the broker's client returned, and ours."""
    do, member = step.do, str(step.do["member"])
    ours: dict[str, Any] = {"error": "NONE"}
    if step.op == "cjoin":
        stage.join(member, "g", ["t"])
        limited = do.get("acquire") == "record_limit"
        stage.clients[member] = Client(member, do.get("mode") == "explicit", limited, do.get("max", 500))
        return step.got, ours
    client = stage.clients[member]
    if step.op == "cpoll":
        ours = _poll(stage, client)
    elif step.op == "cack":
        ours = {"acks": [_choose(client, offset, kind) for _, offset, kind in do["acks"]]}
    elif step.op == "ccommit":
        sent = _send(stage, client)
        ours |= {"partitions": {str(AT): sent[0]}, "callbacks": [_callback(*sent)]} if sent else {}
    elif step.op == "cclose":
        if client.explicit:
            _send(stage, client)
        stage.engine.release_member("g", member, None)
        stage.leave(member, "g")
    broker = {name: value for name, value in step.got.items() if name not in ("exception", "message")}
    if step.op == "cack":
        broker = {"acks": [told.partition(":")[0] for told in step.got["acks"]]}
    return broker, ours


def _poll(stage: Stage, client: Client) -> dict[str, Any]:
    if client.explicit and client.held.keys() - client.results.keys():
        return {"error": "IllegalStateException"}
    ours: dict[str, Any] = {"error": "NONE", "records": []}
    sent = _send(stage, client)
    if client.renewed:  # what was renewed is handed out again before anything new is fetched
        client.held, client.renewed = client.renewed, {}
    else:
        mode: AcquireMode = "record_limit" if client.record_limit else "batch_optimized"
        acquired = stage.engine.acquire(AT, client.member_id, stage.fetch_of(AT, client.max_records, mode))
        client.held = {
            offset: run.delivery_count for run in acquired.ranges for offset in range(run.first, run.last + 1)
        }
    data = stage.logs["t", 0].data
    client.results = {o: GAP for o in client.held if o not in data}
    if not client.explicit:
        client.results |= {o: ACCEPT for o in client.held if o in data}
    ours["records"] = [["t", 0, offset, count] for offset, count in client.held.items() if offset in data]
    return ours | ({"callbacks": [_callback(*sent)]} if sent else {})


def _choose(client: Client, offset: int, kind: str) -> str:
    if not client.explicit or offset not in client.held:
        return "IllegalStateException"
    client.results[offset] = AcknowledgeType[kind.upper()]
    return "NONE"


def _send(stage: Stage, client: Client) -> tuple[str, list[int]] | None:
    """Acknowledge what there is; return the error and the offsets, None where there was nothing."""
    results, client.results = dict(sorted(client.results.items())), {}
    if not results:
        return None
    error = "NONE"
    try:
        runs = [AcknowledgementBatch.of(offset, offset, kind) for offset, kind in results.items()]
        stage.engine.acknowledge(AT, client.member_id, runs, None, True)
    except ShareError as refusal:
        error = refusal.name
    if error == "NONE":  # what could not be renewed is not the client's any more
        client.renewed = {o: client.held[o] for o, kind in results.items() if kind is RENEW}
    client.held = {o: count for o, count in client.held.items() if o not in results}
    return error, list(results)


def _callback(error: str, offsets: list[int]) -> str:
    return f"{AT} {offsets} {error}"
