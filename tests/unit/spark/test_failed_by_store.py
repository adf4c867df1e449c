"""An error of a job is the store's when Java's stack says so; a handler's own error stays what it is."""

from __future__ import annotations

import pytest

from sharequeue.outputs.errors import OutputNotReachable
from sharequeue.spark.output.reachable import OutputFull, failed_by_store

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
def test_an_error_of_the_object_store_is_output_not_reachable(text: str, kind: type[Exception]) -> None:
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
def test_an_error_of_a_handler_stays_as_it_is(text: str) -> None:
    with pytest.raises(RuntimeError) as raised, failed_by_store("s3a://b"):
        raise RuntimeError(text)
    assert str(raised.value) == text


FOLDER = "/data/orders/leases=8-1-0a"


@pytest.mark.parametrize(
    "text",
    [
        f"{LOST}Mkdirs failed to create file:{FOLDER}/_temporary/0 (exists=false)",
        f"Task failed while writing rows to file:{FOLDER}.\nCaused by: java.io.FileNotFoundException: "
        f"{FOLDER}/part-0 (Read-only file system)",
        "org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/data/orders",
    ],
)
def test_an_error_that_names_the_folder_is_output_not_reachable(text: str) -> None:
    """It names the folder of the write, which nothing else does."""
    with pytest.raises(OutputNotReachable, match="cannot be written to") as raised, failed_by_store(FOLDER):
        raise RuntimeError(text)
    assert type(raised.value) is OutputNotReachable


def test_a_missing_file_of_a_handler_is_not_an_error_of_the_output() -> None:
    """A file of its own that is not there, in a task that writes to the folder."""
    text = (
        f"Task failed while writing rows to file:{FOLDER}.\nCaused by: java.io.FileNotFoundException: "
        "/data/prices.csv (No such file or directory)"
    )
    with pytest.raises(RuntimeError), failed_by_store(FOLDER):
        raise RuntimeError(text)
