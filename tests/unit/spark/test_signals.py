"""A signal ends a run, wherever in the program it arrives."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

PROGRAM = """
import os, sys, time, weakref
from sharequeue.spark.signals import interruptible

class Thing:
    pass

def dies(_):
    os.kill(os.getpid(), int(sys.argv[1]))
    for _at in range(1000):
        time.sleep(0)

try:
    with interruptible():
        thing = Thing()
        seen = weakref.ref(thing, dies)
        del thing
        print("goes on")
        time.sleep(600)
except BaseException as error:
    print(type(error).__name__)
"""
"""It gets the signal in a finalizer, where Python ignores the exception."""


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, "Terminated"), (signal.SIGINT, "KeyboardInterrupt")]
)
def test_a_signal_that_arrives_in_a_finalizer_ends_the_block(number: int, raised: str) -> None:
    """Py4J has a finalizer for each object of the JVM."""
    command = [sys.executable, "-c", PROGRAM, str(int(number))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.stdout.split("\n")[:2], ran.stderr) == (["goes on", raised], "")
