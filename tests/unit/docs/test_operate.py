"""The page on operating says what each alert means."""

from __future__ import annotations

import re

from sharequeue.dagster import share_group_defs
from tests.fixtures.dagster import share_group
from tools.pages import ROOT


def test_every_check_has_its_line() -> None:
    """No check can fail of which the page does not say what it means."""
    page = (ROOT / "docs" / "howto" / "operate.md").read_text()
    group = share_group("orders", checks={"max_lag": 1, "max_age": "1h"})
    names = {key.name for each in share_group_defs(group).asset_checks or () for key in each.check_keys}
    # The headers' checks are named together.
    names = {re.sub(r"^header_.*_(present|parseable)$", r"header_…_\1", name) for name in names}
    assert len(names) > 12
    assert {name for name in names if f"`{name}`" not in page} == set()
