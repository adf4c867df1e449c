"""The page on results in a topic, from the orders of a user to the bills of a second queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from tests.servers.command import command_server
from tools.pages import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/howto/topic-to-topic.md"


@pytest.fixture
def reader(settings: Settings, database: Database, topics: Topics, tmp_path: Path) -> Iterator[Reader]:
    """Give somebody who reads the page at the tests' servers; the topics of the page are deleted afterwards."""
    with command_server(tmp_path) as programs:
        environment = {"SHAREQUEUE_HOME": str(settings.home), "SHAREQUEUE_JARS": str(settings.jars)}
        reader = Reader(tmp_path, environment, database, programs)
        yield reader
        reader.end()
    for topic in ("purchases", "purchases.clean", "dlq.purchases"):
        topics.delete(topic)


def test_the_page_runs(
    service: str,
    reader: Reader,
    settings: Settings,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each accepted order is in the second topic once, and is billed once; the other one is not there. The Python
    runs in this process, with its Spark session."""
    assert service
    assert spark
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    monkeypatch.chdir(reader.folder)
    reader.reads_here(PAGE)
    printed = capsys.readouterr().out
    assert "4 accepted, 1 rejected" in printed
    assert """b'ann' b'{"customer":"ann","amount":3}' b'purchases'""" in printed
    assert printed.count("b'purchases'") == 4
    assert "{'ann': 8, 'bob': 4, 'eve': 1}" in printed
