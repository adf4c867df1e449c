"""The tutorial from an empty folder, word for word. In the deep run: it waits for two runs of Dagster's sensor."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from sharequeue.database import Database
from sharequeue.local import stack
from sharequeue.state import State
from sharequeue.words.settings import Settings
from tests.docs.pages import Reader, blocks
from tests.fixtures.stack import jars_folder
from tests.waiting import wait_until


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_own_queue(private_database: Database, tmp_path: Path) -> None:
    """The whole tutorial, word for word: from an empty folder to a queue that Dagster works through by itself, and
    dead letters that come back once the handler is repaired."""
    environment = {
        "SHAREQUEUE_HOME": str(tmp_path / "shop" / ".sharequeue"),
        "SHAREQUEUE_JARS": str(jars_folder()),
    }
    reader = Reader(tmp_path, environment, private_database, tmp_path)

    def ended() -> tuple[int, int, int]:
        with Database.open(Settings.load(tmp_path / "shop" / ".sharequeue")) as database:
            statuses = State(database).figures.describe("orders")
        return (
            sum(s.accepted for s in statuses),
            sum(s.rejected for s in statuses),
            sum(s.lag for s in statuses),
        )

    handler = tmp_path / "shop" / "queues" / "orders.py"
    try:
        for block in blocks("docs/tutorial/own-queue.md"):
            if "order[" in block.text:
                line = textwrap.indent(block.text, " " * 8)
                handler.write_text(
                    handler.read_text().replace("        return {", f"{line}        return {{")
                )
            if "groups describe" in block.text:
                wait_until(lambda: ended() == (95, 5, 0), seconds=200)
            if block.language == "sh":
                reader.run(block)
            if "--execute" in block.text:
                wait_until(lambda: ended() == (100, 5, 0), seconds=200)
    finally:
        stack.down(tmp_path / "shop" / ".sharequeue", lambda line: None)
