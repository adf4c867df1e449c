"""A lease in a process that has forked."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from sharequeue.spark import LeasedRecords
from tests.alone import run_alone


def _raised(leased: LeasedRecords) -> None:
    try:
        with leased:
            raise LookupError
    except LookupError:
        pass


def _left(leased: LeasedRecords) -> None:
    with leased:
        pass


WAYS: tuple[Callable[[LeasedRecords], None], ...] = (
    _left,
    _raised,
    LeasedRecords.close,
    LeasedRecords.__del__,
)
"""How a child may end a lease."""


def fork_in_a_lease() -> None:
    """Fork in an open lease, and have the child end its copy in every way."""
    given_back: list[str] = []
    for way in WAYS:

        def begin(ends: ExitStack) -> Any:
            ends.callback(given_back.append, "lease")
            return SimpleNamespace(
                leases=(),
                lost=0,
                why_nothing=None,
                joined=None,
                sending=SimpleNamespace(done={}),
                keeper=SimpleNamespace(abandon=lambda: given_back.append("keeper")),
            )

        given_back.clear()
        with LeasedRecords("g", begin, None) as leased:
            child = os.fork()
            if child == 0:
                way(leased)
                os._exit(len(given_back))
            assert os.waitpid(child, 0)[1] == 0, way
            assert given_back == []
        assert given_back == ["lease"]


def test_a_forked_child_gives_nothing_back() -> None:
    """A child that leaves the block, by whatever way, has no part in its parent's lease."""
    run_alone(fork_in_a_lease)
