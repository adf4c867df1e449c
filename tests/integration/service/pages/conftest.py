"""Time for the pages: what is in them does not depend on how busy the machine is. Tests of their bounds set these."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest

from sharequeue.service import admission


@pytest.fixture(autouse=True)
def _time_for_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "STATEMENT_SECONDS", 60.0)
    monkeypatch.setattr(admission, "PAGE_SECONDS", 60.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pages read the broker for a minute, where they would end after some seconds."""
    letters = import_module("sharequeue.service.pages.letters_page")
    for name in ("browse", "letter_at"):
        monkeypatch.setattr(letters, name, partial(getattr(letters, name), seconds=60.0))
