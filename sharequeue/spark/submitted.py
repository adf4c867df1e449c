"""The session of a driver that `spark-submit` has started, on a cluster of whatever kind.

Its JVM runs already, with the configuration that was given to `spark-submit`: the master, the jars, the memory. A
session of our own configuration would work elsewhere, and without these jars. So only what is not given is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from sharequeue.spark.signals import kept_handlers

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
        return SparkSession.builder.config(conf=chosen).getOrCreate()
