"""A signal ends a run, wherever in the program it arrives."""

from __future__ import annotations

import os
import signal
import time
import weakref

import pytest

from sharequeue.spark.signals import Terminated, interruptible
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_that_arrives_in_a_finalizer_ends_the_block(
    number: int, raised: type[BaseException]
) -> None:
    """Python ignores an exception that is raised there. Py4J has a finalizer for each object of the JVM."""

    class Thing:
        """An object that dies."""

    def dies(_: weakref.ref[Thing]) -> None:
        os.kill(os.getpid(), number)
        for _at in range(1000):
            time.sleep(0)

    reached = []

    def work() -> None:
        thing = Thing()
        seen = weakref.ref(thing, dies)
        del thing
        reached.append(seen())
        time.sleep(PATIENCE_S)

    with pytest.raises(raised), interruptible():
        work()
    assert reached == [None]
