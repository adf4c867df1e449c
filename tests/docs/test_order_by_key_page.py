"""The page on order by key, from the topic of a user to its accepted records."""

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

PAGE = "docs/howto/order-by-key.md"


@pytest.fixture
def reader(settings: Settings, database: Database, topics: Topics, tmp_path: Path) -> Iterator[Reader]:
    """Give somebody who reads the page at the tests' servers; the topics of the page are deleted afterwards."""
    with command_server(tmp_path) as programs:
        environment = {"SHAREQUEUE_HOME": str(settings.home), "SHAREQUEUE_JARS": str(settings.jars)}
        reader = Reader(tmp_path, environment, database, programs)
        yield reader
        reader.end()
    for topic in ("payments", "dlq.payments"):
        topics.delete(topic)


def test_the_page_runs(
    service: str,
    reader: Reader,
    settings: Settings,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only the key of the released payment waits; repaired, its payments come in their order. The Python runs in this
    process, with its Spark session."""
    assert service
    assert spark
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    monkeypatch.chdir(reader.folder)
    shown = reader.reads_here(PAGE)
    printed = capsys.readouterr().out
    assert "5 accepted, 1 released, 2 to go" in printed
    assert "2 accepted, 0 to go" in printed
    assert "92eb5ffee6ae2fec3ad71c777531578f" in shown  # md5 of b
