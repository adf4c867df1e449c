"""Stores that are no folder of this machine: a server that speaks S3, and a small HDFS. Each is a process of its own.

Only deep tests use them. The client of S3 and the classes of HDFS are fetched once, beside the jars of the stack.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sharequeue.local import jars, ports
from sharequeue.local.preflight import find_java
from tests.fix_stack import jars_folder, say
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGIN = {"access.key": "an-access-key-of-the-tests", "secret.key": "a-secret-key-of-the-tests"}
HDFS = jars.JarSet("hdfs", ("hdfs",), "a small HDFS, once, into {folder} (39 MB)", Path(__file__).parent)
SECONDS = 120


@dataclass(frozen=True, slots=True)
class S3:
    """A server that speaks S3."""

    url: str
    log: Path
    """A line for each request."""

    @property
    def conf(self) -> dict[str, str]:
        """Hadoop's settings for it."""
        return {
            "fs.s3a.endpoint": self.url,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            **{f"fs.s3a.{name}": value for name, value in LOGIN.items()},
        }

    def bucket(self) -> str:
        """Make a bucket that nobody else uses; return its name."""
        name = f"bucket-{uuid.uuid4().hex[:10]}"
        self.client().create_bucket(Bucket=name)
        return name

    def client(self) -> Any:
        """Return a client of the server."""
        import boto3  # type: ignore[import-untyped]

        keys = {"aws_access_key_id": LOGIN["access.key"], "aws_secret_access_key": LOGIN["secret.key"]}
        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **keys)

    def keys(self, bucket: str) -> list[str]:
        """Return the names of all objects that are no markers of folders."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        found = [each["Key"] for page in pages for each in page.get("Contents", ())]
        return sorted(key for key in found if not key.endswith("/"))


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """Give a server that speaks S3, without TLS, which holds all in memory."""
    folder = Path(tempfile.mkdtemp(prefix="sharequeue-s3-"))
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with _serving(command, folder / "s3.log", folder) as server:
        wait_until(lambda: _listens(server, port), SECONDS, (folder / "s3.log").read_text)
        yield S3(f"http://127.0.0.1:{port}", folder / "s3.log")


@pytest.fixture(scope="session")
def hdfs() -> Iterator[str]:
    """Give the URI of a small HDFS: a name node and a data node."""
    own = jars_folder().with_name(f"{jars_folder().name}.hdfs")
    given = os.environ.get("SHAREQUEUE_IVY_SETTINGS")
    jars.ensure(own, find_java(), Path(given) if given else None, say, HDFS)
    folder = Path(tempfile.mkdtemp(prefix="sharequeue-hdfs-"))
    port = _free_port()
    path = os.pathsep.join((str(own / "hdfs" / "*"), str(jars.pyspark_home() / "jars" / "*")))
    command = [
        *(str(find_java().executable), "-Xmx400m", f"-Dtest.build.data={folder}", "-cp", path),
        *("org.apache.hadoop.test.MiniDFSClusterManager", "-datanodes", "1", "-format"),
        *("-nnport", str(port), "-writeDetails", str(folder / "details.json")),
    ]
    with _serving(command, folder / "hdfs.log", folder) as server:

        def begun() -> bool:
            assert server.poll() is None, (folder / "hdfs.log").read_text()
            return (folder / "details.json").exists()

        wait_until(begun, SECONDS, (folder / "hdfs.log").read_text)
        yield f"hdfs://127.0.0.1:{port}"


@pytest.fixture
def on_s3(spark: SparkSession, s3: S3) -> Iterator[str]:
    """Give a URI of a bucket that nobody else uses; the session knows the server meanwhile."""
    for name, value in s3.conf.items():
        spark.conf.set(name, value)
    yield f"s3a://{s3.bucket()}/out put"
    for name in s3.conf:
        spark.conf.unset(name)


@pytest.fixture
def on_hdfs(hdfs: str) -> str:
    """Give a URI of a folder that nobody else uses."""
    return f"{hdfs}/{uuid.uuid4().hex[:10]}/out put"


@contextmanager
def _serving(command: list[str], log: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server for the time of a block; it ends with it, and so does its folder."""
    with log.open("wb") as written:
        server = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=written, stderr=written
        )
    try:
        yield server
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _listens(server: subprocess.Popen[bytes], port: int) -> bool:
    assert server.poll() is None
    return ports.accepts(port)


def _free_port() -> int:
    return next(port for port in random.sample(range(20_000, 30_000), 100) if ports.is_free(port))
