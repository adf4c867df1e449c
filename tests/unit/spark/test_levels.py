"""Nobody names an isolation level but the group's config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sharequeue.spark import lease, pipeline
from sharequeue.spark.reading.isolation_level import refuse_level

_JOB = pipeline(group="g", topics=["t"])(lambda records: records)


@pytest.mark.rule("R-IL-1")
@pytest.mark.parametrize("call", [_JOB.run, _JOB.follow, lambda **given: lease("g", ["t"], **given)])
def test_the_argument_is_refused(call: Callable[..., Any]) -> None:
    """Before anything is opened; the error says where the level is set."""
    with pytest.raises(TypeError, match=r"no argument isolation_level: .*share\.isolation\.level"):
        call(isolation_level="read_committed")


def test_the_readers_option_is_refused_in_any_case() -> None:
    """To the connector upper and lower case are the same. Other options of the client are left alone."""
    refuse_level({"kafka.max.poll.records": "1", "sharequeue.seek": "never"})
    with pytest.raises(ValueError, match=r"KAFKA\.isolation\.level is not supported"):
        refuse_level({"KAFKA.isolation.level": "read_uncommitted"})
