"""What did an ordinary client do to the state, step by step?

The client's own steps are not compared here, but the state after them is: so what its polls, commits and closes
sent is carried out, as far as the recorded scenarios show it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sharequeue.testing import AcknowledgementBatch, AcknowledgeType, SharePartition
from tests.conformance.scenario import Step

if TYPE_CHECKING:
    from tests.conformance.stage import Stage

ACCEPT, GAP = AcknowledgeType.ACCEPT, AcknowledgeType.GAP


@dataclass(slots=True)
class Client:
    """One ordinary client of partition 0 of topic ``t``: what its last poll returned, what it will acknowledge."""

    member_id: str
    explicit: bool
    record_limit: bool
    max_records: int
    held: list[int] = field(default_factory=list)
    results: dict[int, AcknowledgeType] = field(default_factory=dict)


def carry_out(stage: Stage, step: Step) -> None:
    """One step of a client, on the engine."""
    do, got = step.do, step.got
    member = str(do["member"])
    if step.op == "cjoin":
        stage.join(member, "g", ["t"])
        limited = do.get("acquire") == "record_limit"
        stage.clients[member] = Client(member, do.get("mode") == "explicit", limited, do.get("max", 500))
        return
    client = stage.clients[member]
    if step.op == "cpoll" and got["error"] == "NONE":
        _send(stage, client)
        _poll(stage, client, got)
    elif step.op == "cack":
        for (_, offset, kind), result in zip(do["acks"], got["acks"], strict=True):
            if result == "NONE":
                client.results[offset] = AcknowledgeType[kind.upper()]
    elif step.op == "ccommit":
        _send(stage, client)
    elif step.op == "cclose":
        if client.explicit:
            _send(stage, client)
        stage.engine.release_member("g", member, None)
        stage.engine.leave("g", member)


def _poll(stage: Stage, client: Client, got: dict[str, Any]) -> None:
    at = SharePartition("g", "t", 0)
    fetch = stage.fetch_of(
        at, client.max_records, "record_limit" if client.record_limit else "batch_optimized"
    )
    acquired = stage.engine.acquire(at, client.member_id, fetch)
    client.held = list(acquired.offsets.iter_offsets())
    data = stage.logs["t", 0].data
    client.results = {} if client.explicit else {o: ACCEPT if o in data else GAP for o in client.held}


def _send(stage: Stage, client: Client) -> None:
    if client.results:
        runs = [AcknowledgementBatch.of(o, o, kind) for o, kind in sorted(client.results.items())]
        stage.engine.acknowledge(SharePartition("g", "t", 0), client.member_id, runs, None, True)
    client.results, client.held = {}, []
