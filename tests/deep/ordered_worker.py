"""The workers of the ledger of ordered keys: a pipeline for `sharequeue run … --follow`, and a consumer.

`python -m tests.deep.ordered_worker <config> <topic> <ledger> <repaired>` is the consumer; it writes a line for the
records that it is handed and for those that a commit has confirmed. A record says itself what becomes of it: how
often it fails, whether it is rejected, whether it kills its process. What is rejected is accepted once the file
`repaired` is there. The environment names the group, and a table as
`postgres:<name>`, `delta:<path>` or `iceberg:<name>` where rows do not stay in files.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sharequeue.spark import DeltaTable, IcebergTable, PostgresTable, Reject, Release, by_row, pipeline
from sharequeue.spark import session as session_module

TABLES = {"postgres": PostgresTable, "delta": DeltaTable, "iceberg": IcebergTable}
NAME = os.environ.get("ORDERED_NAME", "ordered")
_KIND, _, _TABLE = os.environ.get("ORDERED_TABLE", "").partition(":")
REPAIRED = Path(os.environ.get("ORDERED_REPAIRED", "repaired"))

# Several drivers at once, whose heaps would grow to a quarter of the machine's memory each.
session_module._driver_memory = lambda: "1g"


def outcome_of(value: bytes, delivery_count: int) -> str:
    """Return what becomes of a record. A killing one kills this process."""
    order = json.loads(value)
    if order["kills"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if order["rejected"] and not REPAIRED.exists():
        return "reject"
    return "release" if delivery_count <= order["fails"] else "accept"


def row(record: dict[str, Any]) -> dict[str, Any]:
    """Handle one record in Spark."""
    value = bytes(record["value"])
    outcome = outcome_of(value, record["delivery_count"])
    if outcome == "reject":
        raise Reject("wrong")
    if outcome == "release":
        raise Release("later")
    key = record["key"]
    return {"number": json.loads(value)["number"], "of_key": None if key is None else bytes(key)}


work = pipeline(
    group=NAME,
    topics=[NAME],
    sink=NAME,
    deliveries_per_run=20,
    destination={"postgres": PostgresTable, "delta": DeltaTable, "iceberg": IcebergTable}[_KIND](_TABLE)
    if _KIND
    else None,
)(by_row(row, "number int, of_key binary"))


def consume(config: dict[str, Any], topic: str, ledger_path: str) -> None:
    """Work until SIGTERM. A poll never returns two records of a key: the ledger tells if one does."""
    from sharequeue import AcknowledgeType, ShareConsumer

    kinds = {
        "accept": AcknowledgeType.ACCEPT,
        "release": AcknowledgeType.RELEASE,
        "reject": AcknowledgeType.REJECT,
    }
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    ledger = os.open(ledger_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(**what: object) -> None:
        os.write(ledger, (json.dumps({"worker": os.getpid(), **what}) + "\n").encode())

    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        while not stopping:
            messages = [each for each in consumer.poll(0.3) if each.error() is None]
            places = [[each.partition(), each.offset()] for each in messages]
            if places:
                note(what="handed", records=places)
            accepted: list[list[int | None]] = []
            keys = [(each.partition(), each.key()) for each in messages if each.key() is not None]
            if len(set(keys)) < len(keys):
                note(what="together", records=places)
            for message, place in zip(messages, places, strict=True):
                outcome = outcome_of(message.value() or b"", message.delivery_count())  # type: ignore[arg-type]
                consumer.acknowledge(message, kinds[outcome])
                if outcome == "accept":
                    accepted.append(place)
            errors = {at.partition: error for at, error in consumer.commit_sync().items()}
            done = [place for place in accepted if errors.get(place[0]) is None]  # type: ignore[arg-type]
            if accepted:
                refused = {str(at): str(error) for at, error in errors.items() if error is not None}
                note(what="committed", records=done, refused=refused)
            time.sleep(0.01)


if __name__ == "__main__":
    REPAIRED = Path(sys.argv[4])
    consume(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3])
