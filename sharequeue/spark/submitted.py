"""The session of a driver that `spark-submit` has started, on a cluster of whatever kind.

Its JVM runs already, with the configuration that was given to `spark-submit`: the master, the jars, the memory. A
session of our own configuration would work elsewhere, and without these jars. So only what is not given is set.

Whoever stops such a driver, as Kubernetes, YARN and a Pipes client do, sends a signal to the JVM, which ends without
its Python process: its session is gone, and that looks like a crash. So the JVM passes these signals on, and the run
ends as cancelled.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from sharequeue.spark.signals import kept_handlers

_log = logging.getLogger(__name__)

__all__ = ["is_submitted", "submitted_session"]

_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""By this variable `spark-submit` tells its Python process where its JVM is."""
UNLESS_GIVEN = {
    "spark.sql.session.timeZone": "UTC",
    # One open file per lease and kind instead of a sort of every record by its lease.
    "spark.sql.maxConcurrentOutputFileWriters": "256",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


def is_submitted() -> bool:
    """Return whether `spark-submit` has started this process."""
    return _VARIABLE in os.environ


def submitted_session(app_name: str, conf: Mapping[str, str]) -> SparkSession:
    """Return a session with the configuration of `spark-submit`, which `conf` overrides."""
    with kept_handlers():
        SparkContext._ensure_initialized()
        chosen = SparkConf()
        for name, value in UNLESS_GIVEN.items():
            chosen.setIfMissing(name, value)
        # Without a name, `spark-submit` gives that of the file.
        if (chosen.get("spark.app.name") or "").endswith(".py"):
            chosen.setAppName(app_name)
        for name, value in conf.items():
            chosen.set(name, value)
        session = SparkSession.builder.config(conf=chosen).getOrCreate()
    _pass_signals_on()
    return session


class _PassedOn:
    """A handler of signals of the JVM: this process gets them."""

    def handle(self, received: Any) -> None:
        """Send this process the signal that the JVM has received."""
        os.kill(os.getpid(), int(received.getNumber()))

    class Java:
        """What Py4J makes of it."""

        implements = ("sun.misc.SignalHandler",)


def _pass_signals_on() -> None:
    """Let the JVM pass SIGINT and SIGTERM on to this process, instead of ending."""
    gateway: Any = SparkContext._gateway
    try:
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        of_java = gateway.jvm.sun.misc.Signal
        for number in (signal.SIGINT, signal.SIGTERM):
            of_java.handle(of_java(number.name.removeprefix("SIG")), _PassedOn())
    except Py4JError as error:
        _log.warning("a signal to the JVM of spark-submit will look like a crash: %s", error)
