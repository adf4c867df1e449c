"""How does a run get a session in a JVM that is kept between runs?

It asks the keeper of its data folder, and starts one where there is none. The session is the run's own; stopping it
leaves the JVM for the next run. Wherever that does not work the run starts a JVM of its own, with a warning. Only for
`local` masters: on a cluster the Python workers of a run could not be ended with it.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession, SQLContext

from sharequeue.jvm.kept_spark import NoKeeper, SilentKeeper, begin, connect, log_file
from sharequeue.settings import Settings
from sharequeue.spark.gateway import attach
from sharequeue.spark.terms import GUEST, terms_of

__all__ = ["kept_session"]

START_SECONDS = 120.0
"""How long a keeper may take to start Spark before the run starts its own."""
_log = logging.getLogger(__name__)


def kept_session(settings: Settings, conf: Mapping[str, str]) -> SparkSession | None:
    """Return a session in the kept JVM; None where the run needs a JVM of its own. What went wrong is logged."""
    request = {
        "wanted": "session",
        "pid": os.getpid(),
        "terms": terms_of(conf),
        "options": {name: value for name, value in conf.items() if name.startswith("spark.sql.")},
    }
    try:
        connection, reply = _admission(settings, conf, request)
    except NoKeeper as error:
        _log.warning(
            "Spark's JVM is not kept for this run (%s): it starts one of its own. The keeper's log: %s",
            error,
            log_file(settings.home),
        )
        return None
    try:
        return _session(conf, connection, reply)
    except (Py4JError, OSError) as error:
        _forget(connection)
        _log.warning("the kept JVM did not give a session (%s): this run starts a JVM of its own", error)
        return None


def _admission(
    settings: Settings, conf: Mapping[str, str], request: Mapping[str, Any]
) -> tuple[socket.socket, dict[str, Any]]:
    """Return the connection and the way into the JVM; a keeper is started where there is none, or another one's."""
    deadline = time.monotonic() + START_SECONDS
    keeper: subprocess.Popen[bytes] | None = None
    told = False
    while True:
        try:
            connection, reply = connect(settings.home, request)
        except NoKeeper as error:
            if isinstance(error, SilentKeeper) or time.monotonic() > deadline:
                raise
            if keeper is None:
                keeper = begin(settings.home, settings.keep_spark_seconds, conf)
            elif keeper.poll() not in (None, 0):
                raise NoKeeper(f"its keeper ended with exit code {keeper.returncode}") from None
            elif keeper.poll() == 0:
                keeper = None  # another's was at work, and may be ending
            time.sleep(0.05)
            continue
        if "port" in reply:
            if keeper is not None:
                keeper.returncode = 0  # it outlives us, and Popen must not complain about that
            return connection, reply
        connection.close()
        if reply.get("ending") is None:
            raise NoKeeper(f"it is in use with other settings: {', '.join(reply['unlike'])}")
        if reply["attached"]:
            raise NoKeeper(f"it ends after the runs that use it: {reply['ending']}")
        if not told:
            told = True
            _log.warning("Spark's kept JVM is replaced: %s", reply["ending"])
        if time.monotonic() > deadline:
            raise NoKeeper(f"it did not end within {START_SECONDS:g} s")
        time.sleep(0.05)


def _session(conf: Mapping[str, str], connection: socket.socket, reply: Mapping[str, Any]) -> SparkSession:
    gateway = attach(int(reply["port"]), reply["secret"])
    jvm: Any = gateway.jvm
    # What the keeper's thread had, the threads of this way in have inherited.
    java_session = jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().get()
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        java_session.sparkContext()
    )
    spark_conf = SparkConf(loadDefaults=False)
    for name in ("spark.master", "spark.app.name"):
        spark_conf.set(name, conf[name])
    context = _GuestContext(conf=spark_conf, gateway=gateway, jsc=java_context)
    # Python workers see this run's environment, as those of a JVM of its own would.
    context.environment.update({**os.environ, GUEST: reply["name"]})
    session = _GuestSession(context, java_session)
    session._connection = connection
    return session


class _GuestContext(SparkContext):
    def stop(self) -> None:
        """Leave Spark's context, which goes on."""
        shutil.rmtree(getattr(self, "_temp_dir", ""), ignore_errors=True)  # else the JVM does it at its end
        self._jsc = None
        super().stop()


class _GuestSession(SparkSession):
    _connection: socket.socket | None = None

    def stop(self) -> None:
        """Leave the kept JVM: the keeper ends what this run has started there."""
        self.sparkContext.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SQLContext._instantiatedContext = None
        _forget(self._connection)


def _forget(connection: socket.socket | None) -> None:
    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(Exception):
        gateway.shutdown()
    if connection is not None:
        connection.close()
