"""Check that this process can write to the store that a URI names.

The check runs before anything is leased: it writes a small file and removes it. The clients of object stores retry
for many minutes before they report a wrong address or login. So the check uses a separate client that tries once or
twice. Errors never contain a login.

A store may also fail or fill up while tasks write. No record is the cause: such errors are distinguished here from a
handler's errors, so that they cost no record a delivery.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from sharequeue.domain.errors import first_line
from sharequeue.outputs.errors import OutputNotReachable

FEW_TRIES = {
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.retry.interval": "100ms",
    "ipc.client.connect.max.retries": "1",
    "ipc.client.connect.max.retries.on.timeouts": "1",
    "ipc.client.connect.timeout": "5000",
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.retry.max.attempts": "1",
}
"""Hadoop's settings of the client for the check. Hadoop ignores unknown settings."""
_SECRETS = ("secret", "password", "token", "access.key", "account.key", "private.key", "credential")
"""Parts of the names of settings whose values are never shown."""
_FULL = (
    "QuotaExceeded",
    "No space left on device",
    "Disk quota exceeded",
    "could only be written to 0 of",
    "StorageFull",
)
_OF_A_STORE = ("org.apache.hadoop.fs.s3a.", "org.apache.hadoop.hdfs.", "org.apache.hadoop.ipc.", "awssdk.")
"""The packages of the stores' clients in Java stack traces."""
_AUTHORITY = re.compile(r"^[a-z0-9]+:(//[^/]*)?")
_OF_A_DISK = re.compile(r"\b(?:java\.n?io|org\.apache\.hadoop)\.[\w.$]+: .*")
"""Errors of Java and Hadoop for a file on this machine."""
_CAUSES = (
    (
        ("NoSuchMethodError", "NoClassDefFoundError", "ClassNotFoundException", "UnsupportedFileSystem"),
        "Spark has no client for it, or a part of it is missing: put its jars on Spark's class path. For s3a: run "
        "`sharequeue jars fetch s3a`, which fetches them once",
    ),
    (("UnknownStoreException", "NoSuchBucket"), "there is no such bucket: create it, or correct the name"),
    (
        ("NoAuthWithAWS", "CredentialInitialization", "Unable to load credentials", "NoAwsCredentials"),
        "there are no credentials: give them to Hadoop (fs.s3a.aws.credentials.provider) or set AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY",
    ),
    (
        (
            "AccessDenied",
            "AccessControlException",
            "Forbidden",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
        ),
        "the login may not write there: give it the right to list, read, write and delete, or use another login",
    ),
    (
        ("UnknownHost", "ConnectException", "ConnectTimeout", "Unable to execute HTTP", "Connection refused"),
        "its address does not answer: check the host in the URI, or fs.s3a.endpoint",
    ),
    (_FULL, "it is full: free some space"),
)


class OutputFull(OutputNotReachable):
    """The output has no space left. Nothing of the round was acknowledged, and it costs no record a delivery."""


@contextmanager
def failed_by_store(folder: str) -> Iterator[None]:
    """Raise OutputFull or OutputNotReachable for a Spark error caused by the output and not by a handler."""
    try:
        yield
    except Exception as error:
        text = whole_text(error)
        if "Traceback (most recent call last)" in text:  # a Python traceback: a handler's error
            raise
        cause = next(
            (line.strip() for line in text.splitlines() if any(word in line for word in _FULL)), None
        )
        if cause is not None:
            raise OutputFull(
                f"{folder}, or a disk that Spark uses, is full: free some space, and start again. Nothing of this "
                f"round was acknowledged, and its deliveries were given back. The error: {cause[:500]}"
            ) from error
        causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
        if any(
            word in line
            for line in text.splitlines()
            for word in _OF_A_STORE
            if line.lstrip().startswith("at ")
        ):
            raise OutputNotReachable(
                f"{folder} failed during a write: check the store, and start again. Nothing of this round was "
                f"acknowledged, and its deliveries were given back. {' '.join(causes[-1:])[:500]}"
            ) from error
        at = _AUTHORITY.sub("", folder).rstrip("/") or folder
        of_output = (said for said in _OF_A_DISK.findall(text) if at in said or "ParentNotDirectory" in said)
        if refused := next(of_output, None):
            raise OutputNotReachable(
                f"{folder} cannot be written to: check whether it was removed or is no longer writable, and start "
                "again. Nothing of this round was acknowledged, and its deliveries were given back. The error: "
                f"{refused[:500]}"
            ) from error
        raise


def whole_text(error: Exception) -> str:
    """Return an error's message; for a Java exception with its causes."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    return "\n".join([str(error), *_chain(java)])


@contextmanager
def failed_by_disk(folder: str, what: str = "flushed to disk") -> Iterator[None]:
    """Raise OutputFull or OutputNotReachable for an error of this machine's file system. Such an error may appear
    only when the files are flushed.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputFull(
                f"{folder} is full: free some space, and start again. Nothing of this round was acknowledged, and "
                f"its deliveries were given back. The error: {error.strerror}"
            ) from error
        raise OutputNotReachable(
            f"{folder} cannot be {what}: check the disk, and start again. Nothing of this round was acknowledged, "
            f"and its deliveries were given back. The error: {error.strerror}"
        ) from error


def reach(jvm: Any, conf: Any, folder: str) -> None:
    """Write a small file into a folder and remove it. Raises OutputNotReachable."""
    hadoop = jvm.org.apache.hadoop
    impatient = hadoop.conf.Configuration(conf)
    for name, value in FEW_TRIES.items():
        impatient.set(name, value)
    path = hadoop.fs.Path(f"{folder}/_probe-{uuid4().hex}")
    try:
        client = hadoop.fs.FileSystem.newInstance(path.toUri(), impatient)
        try:
            stream = client.create(path, True)
            stream.write(bytearray(b"may this be written?"))
            stream.close()
            client.delete(path, False)
        finally:
            client.close()
    except Py4JJavaError as error:
        raise not_reachable(conf, folder, error) from None


def not_reachable(conf: Any, folder: str, error: Py4JJavaError) -> OutputNotReachable:
    """Return the exception for a Hadoop error: its first line, its meaning, and what to do."""
    chain = _chain(error.java_exception)
    known = (todo for words, todo in _CAUSES for word in words if any(word in line for line in chain))
    todo = next(known, "check the URI, and the settings of Spark and Hadoop for it")
    first = _without_secrets(conf, first_line(chain[0])[:500])
    return OutputNotReachable(
        f"{folder} cannot be the output: {todo}. Nothing was leased. The {urlsplit(folder).scheme} client reports: "
        f"{first}"
    )


def class_of(throwable: Any) -> str:
    """Return the class name of a Java exception."""
    return str(throwable.getClass().getName())


def _chain(throwable: Any) -> list[str]:
    found: list[str] = []
    while throwable is not None and len(found) < 10:
        found.append(str(throwable.toString()))
        throwable = throwable.getCause()
    return found


def _without_secrets(conf: Any, text: str) -> str:
    entries = conf.iterator()
    while entries.hasNext():
        entry = entries.next()
        name, value = str(entry.getKey()), str(entry.getValue())
        if len(value) > 3 and value in text and any(part in name for part in _SECRETS):
            text = text.replace(value, "***")
    return text
