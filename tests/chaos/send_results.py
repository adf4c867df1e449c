"""The process that a kill test kills: sends the results of one source partition and dies at a given step.

It reads `SENDING SOURCE FIRST STEP NTH` from its input, SENDING as JSON without spaces, and forks a process for each
line, which kills itself at the NTH time that STEP is reached. Each record has two rows, a transaction a few records.
"""

from __future__ import annotations

import json
import os
import signal

import pyarrow as pa

from sharequeue.deadletters import outbox
from sharequeue.spark.sinks.kafka.records import SOURCE_HEADERS
from sharequeue.spark.sinks.kafka.sending import Names, TopicSender, TransferToSend
from tests.chaos.forked_processes import serve

RECORDS, ROWS = 40, 2
"""Records of a transfer, and the rows of each."""
PART_BYTES = 3_000
"""The size of a transaction: 5 records."""


def batches(topic: str, first: int) -> list[pa.RecordBatch]:
    """Return the rows of RECORDS records from an offset on, in two batches that divide the rows of a record."""
    rows = [
        {
            "topic": topic,
            "partition": 0,
            "offset": offset,
            "lease_id": 1,
            "key": b"key",
            "value": b"%d %d" % (offset, row),
            "headers": None,
            "to_partition": 0,
            "timestamp": 0,
        }
        for offset in range(first, first + RECORDS)
        for row in range(ROWS)
    ]
    return [pa.RecordBatch.from_pylist(some) for some in (rows[:11], rows[11:])]


def sending(
    client: dict[str, object], group: str, target: str, target_id: str, number: int
) -> TransferToSend:
    """Return what the sender has to know."""
    return TransferToSend(
        client, Names(group, "sink", "origin"), target, target_id, {}, number, SOURCE_HEADERS
    )


def send(text: str, source: str, first: str, step: str, nth: str) -> None:
    """Send, unless dead before."""
    outbox.TRANSACTION_BYTES, outbox.PRODUCED_STEP = PART_BYTES, ROWS
    left = int(nth)

    def on_step(reached: str) -> None:
        nonlocal left
        left -= reached == step
        if reached == step and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sender = TopicSender(sending(**json.loads(text)), on_step)
    (report,) = (row for batch in sender(batches(source, int(first))) for row in batch.to_pylist())
    assert report["problem"] is None, report
    os._exit(0)


if __name__ == "__main__":
    serve(send)
