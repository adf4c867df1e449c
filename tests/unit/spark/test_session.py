"""How a Spark session begins, and which sessions are refused."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import SparkConf

from sharequeue.domain.settings import Settings
from sharequeue.spark import SparkNotReady, lease, pipeline, session
from sharequeue.spark.session import refuse_connect

Remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})


def test_a_session_of_spark_connect_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease needs a classic session."""
    settings, remote = Settings.load(tmp_path), Remote()
    wanted = "session is Spark Connect's: a lease needs a classic session.*Nothing was leased"
    job = pipeline(group="g", topics=["t"])(lambda records: records)
    with pytest.raises(SparkNotReady, match=wanted):
        job.sweep(settings, spark=remote)
    with pytest.raises(SparkNotReady, match=wanted):
        lease("g", ["t"], settings=settings, spark=remote).open()
    monkeypatch.setenv("SPARK_REMOTE", "sc://somewhere")
    with pytest.raises(SparkNotReady, match="SPARK_REMOTE selects Spark Connect"):
        refuse_connect()


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        (None, "did not start(.|\n)*heap"),
        ("/nowhere", "JAVA_HOME=/nowhere has no bin/java: set it to an installation of Java 17 or 21"),
    ],
)
def test_a_jvm_that_does_not_start_is_an_error_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, wanted: str
) -> None:
    """The end of its log, or the Java that is not there. The environment is afterwards as it was before."""
    if before:
        monkeypatch.setenv("JAVA_HOME", before)
    else:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    conf = SparkConf(loadDefaults=False).setMaster("local[1]").set("spark.driver.memory", "1")
    given: Any = Settings.load(tmp_path)
    with pytest.raises(SparkNotReady, match=wanted):
        session._gateway(given, conf)
    assert os.environ.get("JAVA_HOME") == before


def test_a_process_that_was_started_in_an_interrupted_block_is_ended() -> None:
    """A run that is terminated while Spark's JVM starts leaves no JVM: it would wait for its launcher for ever."""
    before = subprocess.Popen(["sleep", "60"])
    started: list[subprocess.Popen[bytes]] = []
    try:
        with suppress(KeyboardInterrupt), session.ended_with_the_block():
            started.append(subprocess.Popen(["sleep", "60"]))
            raise KeyboardInterrupt
        assert not psutil.pid_exists(started[0].pid)
        assert before.poll() is None
    finally:
        before.kill()
        before.wait()
