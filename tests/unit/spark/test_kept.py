"""A kept JVM of Spark's: what must be alike, what is said when nobody keeps one, and no Spark Connect."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from sharequeue.jvm.kept_spark import NoKeeper, SilentKeeper, address_file, ask, connect
from sharequeue.settings import Settings
from sharequeue.spark import SparkNotReady, lease, pipeline
from sharequeue.spark.session import refuse_connect
from sharequeue.spark.terms import terms_of, unlike

Remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})


def test_a_session_of_spark_connect_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, session = Settings.load(tmp_path), Remote()
    wanted = "session is Spark Connect's: a lease needs a classic session.*Nothing was leased"
    job = pipeline(group="g", topics=["t"])(lambda records: records)
    with pytest.raises(SparkNotReady, match=wanted):
        job.sweep(settings, spark=session)
    with pytest.raises(SparkNotReady, match=wanted):
        lease("g", ["t"], settings=settings, spark=session).open()
    monkeypatch.setenv("SPARK_REMOTE", "sc://somewhere")
    with pytest.raises(SparkNotReady, match="SPARK_REMOTE asks for Spark Connect"):
        refuse_connect()


def test_what_differs_is_named_and_the_name_and_the_archive_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = '-Dx=1 "-XX:SharedArchiveFile=/a b.jsa" "-Xlog:cds*=off"'
    first = terms_of({"spark.app.name": "a", "spark.driver.extraJavaOptions": options})
    assert unlike(first, terms_of({"spark.app.name": "b", "spark.driver.extraJavaOptions": "-Dx=1"})) == []
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    other = terms_of({"spark.driver.extraJavaOptions": "-Dx=1", "spark.driver.memory": "2g"})
    assert unlike(first, other) == ["AWS_SECRET_ACCESS_KEY", "spark.driver.memory"]
    assert "hidden" not in str(other)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no keeper was started"), ("{", "cannot be read"), ('{"port": 1}', "cannot be read")],
)
def test_without_a_keeper_it_is_said(tmp_path: Path, content: str | None, said: str) -> None:
    file = address_file(tmp_path)
    file.parent.mkdir()
    if content is not None:
        file.write_text(content)
    with pytest.raises(NoKeeper, match=said):
        ask(tmp_path)


def test_a_keeper_that_is_gone_and_one_that_says_nothing_are_two_things(tmp_path: Path) -> None:
    file = address_file(tmp_path)
    file.parent.mkdir()
    request: dict[str, Any] = {"wanted": "state"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        file.write_text(json.dumps({"port": listener.getsockname()[1], "secret": "s"}))
        with pytest.raises(SilentKeeper):
            connect(tmp_path, request, 0.1)
    with pytest.raises(NoKeeper, match="gone"):
        connect(tmp_path, request, 0.1)
