"""Nobody names an isolation level but the group's config."""

from __future__ import annotations

import pytest

from sharequeue.spark.reading.plan import refuse_level


@pytest.mark.rule("R-IL-1")
def test_the_readers_option_is_refused_in_any_case() -> None:
    """To the connector upper and lower case are the same. Other options of the client are left alone."""
    refuse_level({"kafka.max.poll.records": "1", "sharequeue.seek": "never"})
    with pytest.raises(ValueError, match=r"KAFKA\.isolation\.level is not supported"):
        refuse_level({"KAFKA.isolation.level": "read_uncommitted"})
