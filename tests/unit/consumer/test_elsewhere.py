"""A consumer in a process that has forked, and in one with many open files."""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IllegalStateException

from sharequeue.consumer.share_consumer import _abandon
from sharequeue.state.listening import _wait_for
from tests.alone import run_alone
from tests.unit.consumer.stub import consumer_of, put

SELECTABLE = 1024
"""How many open files select can name: FD_SETSIZE."""


def fork_beside_a_consumer() -> None:
    """Fork while a consumer has a record, and use the copy."""
    with consumer_of() as consumer:
        put(consumer, 0, 1)
        pid = os.getpid()
        child = os.fork()
        if child == 0:
            right = False
            with suppress(BaseException):
                with pytest.raises(IllegalStateException, match="create one in each process"):
                    consumer.poll(0)
                consumer.close()
                nothing: Any = SimpleNamespace()
                _abandon(pid, nothing, nothing, nothing)
                right = True
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(consumer.poll(0)) == 1


def test_a_fork_leaves_its_parent_s_consumer_alone() -> None:
    """It is told to make one of its own; closing or dropping the copy gives nothing back."""
    run_alone(fork_beside_a_consumer)


def test_a_process_with_many_open_files_is_notified() -> None:
    """More than select can name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, SELECTABLE)
    try:
        os.write(writing, b"x")
        _wait_for((high,), 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in (reading, writing, high):
            os.close(each)
