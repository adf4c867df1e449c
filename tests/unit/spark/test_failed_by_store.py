"""An error of a job is the store's when Java's stack says so; a handler's own error stays what it is."""

from __future__ import annotations

import pytest

from sharequeue.spark.output.reachable import OutputFull, OutputNotReachable, failed_by_store

LOST = "Job aborted due to stage failure: Task 0 in stage 1.0 failed: java.io.IOException: "


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{LOST}No space left on device\n\tat java.base/sun.nio.ch.IOUtil.write(IOUtil.java)", OutputFull),
        (f"{LOST}org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: quota", OutputFull),
        (f"{LOST}timeout\n\tat org.apache.hadoop.fs.s3a.Invoker.once(Invoker.java:124)", OutputNotReachable),
        (
            f"{LOST}no\n\tat org.apache.hadoop.hdfs.DataStreamer.run(DataStreamer.java:717)",
            OutputNotReachable,
        ),
    ],
)
def test_an_error_of_the_store(text: str, kind: type[Exception]) -> None:
    with (
        pytest.raises(OutputNotReachable, match="its deliveries were given back") as raised,
        failed_by_store("s3a://b"),
    ):
        raise RuntimeError(text)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    "text",
    [
        f"{LOST}no\n\tat com.example.Handler.call(Handler.java:1)",
        "PythonException:\nTraceback (most recent call last):\n  File\nOSError: [Errno 28] No space left on device",
        "org.apache.hadoop.hdfs is what a record says",
    ],
)
def test_an_error_of_a_handler(text: str) -> None:
    with pytest.raises(RuntimeError) as raised, failed_by_store("s3a://b"):
        raise RuntimeError(text)
    assert str(raised.value) == text
