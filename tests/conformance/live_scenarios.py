"""The scenarios that run on the broker and on ours in every run, and the rule that each pins.

After each step that changes something, start offsets, lag and states are looked at as well. A step that differs on
purpose says under which line of `differences.json`.
"""

from __future__ import annotations

from tests.conformance.live_groups import GROUPS
from tests.conformance.live_records import RECORDS
from tests.conformance.live_steps import Live

LIVE: dict[str, Live] = RECORDS | GROUPS
"""By name."""
