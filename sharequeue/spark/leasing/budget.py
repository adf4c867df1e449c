"""How much does a round lease at most?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_RECORDS = 10_000_000
"""Records leased in a round unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is leased at most. `max_bytes` is no bound when 0; else `mean_bytes` has the mean size of each topic's
    records.
    """

    max_records: int
    max_bytes: int = 0
    mean_bytes: Mapping[str, float] = field(default_factory=dict)
