"""The edits of the deep run still fit the functions they break."""

from __future__ import annotations

from sharequeue.database import Database
from tests.deep.edits import HISTORY_EDITS, ORDER_EDITS, RULE_EDITS, source_of


def test_every_edit_finds_its_text(database: Database) -> None:
    """Exactly once in the function it names; otherwise a deep run would break nothing and prove nothing."""
    for edit in (*HISTORY_EDITS, *ORDER_EDITS, *RULE_EDITS.values()):
        source = source_of(database, edit.function)
        assert edit.edited(source) != source
