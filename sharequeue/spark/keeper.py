"""Who keeps Spark's JVM between runs, and leaves nothing of one run for the next?

`python -m sharequeue.spark.keeper HOME SECONDS` starts a JVM with a SparkContext and waits for runs. Each run gets a
py4j server of its own in that JVM, with a secret of its own, whose threads inherit a session and a job tag: whatever
the run starts carries the tag. The session has its own shared state: catalogs, views, cached frames. The run
keeps its connection to the keeper open; when that ends, however the run ended, the keeper cancels the tag's jobs and
takes away the server, the session and the Python workers. A run that changed what belongs to the whole context
(files, jars, Hadoop's configuration) makes this JVM the last run's: the next one gets a new JVM.

The keeper ends after the idle limit, after `RUNS` runs, with its JVM, or by SIGTERM.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from sharequeue.jvm.kept_spark import NAME, address_file
from sharequeue.settings import Settings
from sharequeue.spark.gateway import start_gateway
from sharequeue.spark.session import configuration
from sharequeue.spark.terms import GUEST, forget_others, terms_of, unlike

__all__ = ["Keeper", "main"]

RUNS = 500
"""After so many a JVM is not kept on: each leaves a thread of Spark's that watches Python workers."""
_LOOK_SECONDS = 0.5
_log = logging.getLogger(__name__)


class Guest:
    """A run in the kept JVM: its session, its tag, and its way in."""

    def __init__(self, context: SparkContext, options: Mapping[str, str]) -> None:
        """Make them. This thread's counterpart in the JVM gets session and tag, for its children to inherit."""
        jvm: Any = context._jvm
        self.name = secrets.token_hex(8)
        self._context = context
        self._jvm = jvm
        self._tag = f"kept-{self.name}"
        context.addJobTag(self._tag)
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        # One made from the context, and not another's newSession(): that would share cached frames and views.
        self._session = sessions(context._jsc.sc(), dict(options))
        sessions.setActiveSession(self._session)
        self.secret = secrets.token_hex(32)
        builder = getattr(jvm, "py4j.ClientServer$ClientServerBuilder")()
        address = jvm.java.net.InetAddress.getLoopbackAddress()
        self._server = builder.authToken(self.secret).javaPort(0).javaAddress(address).build()
        self._server.startServer()
        self.port = int(self._server.getJavaServer().getListeningPort())

    def leave(self) -> None:
        """Cancel its jobs, and take away what it had."""
        # Twice: a thread between two jobs starts one more. Without the server, no third.
        self._context.cancelJobsWithTag(self._tag)
        self._server.shutdown()
        self._context.cancelJobsWithTag(self._tag)
        # To ask a session for its queries makes a manager, which stays.
        if "stream execution thread" in str(
            self._jvm.java.lang.Thread.getAllStackTraces().keySet().toString()
        ):
            for query in self._session.streams().active():
                query.stop()
        _end_workers(self.name)
        state = self._session.sharedState()
        state.cacheManager().clearCache()
        listener = state.statusStore().listener()
        if listener.isDefined():
            self._context._jsc.sc().removeSparkListener(listener.get())
        sessions = self._jvm.org.apache.spark.sql.classic.SparkSession
        sessions.clearActiveSession()
        sessions.clearDefaultSession()
        self._context.clearJobTags()
        self._context.cancelJobsWithTag(self._tag)


class Keeper:
    """A SparkContext for one run after the other, and for several at once."""

    def __init__(self, home: Path, conf: Mapping[str, str], idle_seconds: float) -> None:
        self._idle_limit = idle_seconds
        self._terms = terms_of(conf)  # before Spark sets variables of its own
        spark_conf = SparkConf(loadDefaults=False)
        for name, value in conf.items():
            spark_conf.set(name, value)
        self._context = SparkContext(conf=spark_conf, gateway=start_gateway(spark_conf))
        # The first session of a context sets what all of them share.
        SparkSession(self._context).range(1).collect()
        self._process: Any = SparkContext._gateway.proc  # type: ignore[union-attr]
        self._untouched = self._shared()
        self._secret = secrets.token_hex(32)
        self._home = home
        self._lock = threading.Lock()
        self._attached = 0
        self._runs = 0
        self._idle_since = time.monotonic()
        self._ending: str | None = None

    def serve(self) -> None:
        """Take in runs until there is a reason to end."""
        with socket.create_server(("127.0.0.1", 0)) as listener, self._announced(listener.getsockname()[1]):
            listener.settimeout(_LOOK_SECONDS)
            while (reason := self._reason_to_end()) is None:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
        _log.warning("the kept JVM ends: %s", reason)

    def stop(self) -> None:
        """End the JVM."""
        self._process.stdin.close()
        try:
            self._process.wait(15)
        except Exception:  # whatever keeps it
            self._process.kill()

    @contextmanager
    def _announced(self, port: int) -> Iterator[None]:
        file = address_file(self._home)
        part = file.with_suffix(".part")
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(json.dumps({"port": port, "secret": self._secret}))
        part.replace(file)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)

    def _reason_to_end(self) -> str | None:
        if self._process.poll() is not None:
            return f"it ended by itself (exit code {self._process.returncode})"
        with self._lock:
            if self._attached:
                return None
            if self._ending is None and self._runs >= RUNS:
                self._ending = f"it has served {RUNS} runs"
            if self._ending is None and time.monotonic() - self._idle_since > self._idle_limit:
                self._ending = f"no run for {self._idle_limit:g} s"
            return self._ending

    def _attend(self, connection: socket.socket) -> None:
        """Serve one connection to its end."""
        with connection, suppress(OSError, ValueError, Py4JError):
            connection.settimeout(10)
            request = json.loads(connection.makefile("rb").readline())
            if not hmac.compare_digest(str(request["secret"]), self._secret):
                return
            reply = self._state() if request["wanted"] == "state" else self._admitted(request)
            if not reply.pop("admitted", False):
                connection.sendall(json.dumps(reply).encode() + b"\n")
                return
            try:
                self._host(connection, request)
            finally:
                self._left()

    def _state(self) -> dict[str, Any]:
        with self._lock:
            idle = 0.0 if self._attached else time.monotonic() - self._idle_since
            return {
                "pid": os.getpid(),
                "attached": self._attached,
                "runs": self._runs,
                "idle_seconds": round(idle, 1),
                "idle_limit_seconds": self._idle_limit,
            }

    def _admitted(self, request: Mapping[str, Any]) -> dict[str, Any]:
        unequal = unlike(self._terms, request["terms"])
        with self._lock:
            if unequal and not self._attached:
                self._ending = f"a run has other settings ({', '.join(unequal)})"
            if unequal or self._ending is not None:
                return {"unlike": unequal, "ending": self._ending, "attached": self._attached}
            self._attached += 1
            self._runs += 1
            return {"admitted": True}

    def _host(self, connection: socket.socket, request: Mapping[str, Any]) -> None:
        process = psutil.Process(int(request["pid"]))
        guest = Guest(self._context, request["options"])
        try:
            reply = {"port": guest.port, "secret": guest.secret, "name": guest.name}
            connection.sendall(json.dumps(reply).encode() + b"\n")
            connection.settimeout(_LOOK_SECONDS)
            # A forked child may hold the connection when the run itself is gone.
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                try:
                    if not connection.recv(1):
                        break
                except TimeoutError:
                    continue
        except (OSError, psutil.Error):
            pass  # it is gone
        finally:
            guest.leave()

    def _left(self) -> None:
        try:
            touched = self._shared() != self._untouched
        except Py4JError:
            touched = True
        with self._lock:
            self._attached -= 1
            self._idle_since = time.monotonic()
            if touched and self._ending is None:
                self._ending = "a run has changed files, jars or Hadoop's configuration of the whole context"

    def _shared(self) -> str:
        """Return what runs can change of the whole context."""
        context: Any = self._context._jsc.sc()
        writer = self._context._jvm.java.io.StringWriter()  # type: ignore[union-attr]
        context.hadoopConfiguration().writeXml(writer)
        found = (
            context.addedFiles(),
            context.addedJars(),
            context.addedArchives(),
            context.getCheckpointDir(),
        )
        return hashlib.sha256(f"{[str(each) for each in found]}{writer}".encode()).hexdigest()


def _end_workers(name: str) -> None:
    """End the Python workers of a run: they have its environment, and its code in memory."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.environ().get(GUEST) == name:
                process.terminate()


def main() -> None:
    """Keep a JVM for the data folder on the command line; its configuration comes by standard input."""
    logging.basicConfig(format="%(asctime)s %(levelname)s keeper: %(message)s")
    home = Path(sys.argv[1])
    conf: dict[str, str] | None = json.load(sys.stdin)
    with (home / "run" / f"{NAME}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        chosen = conf or configuration(Settings.load(home), NAME)
        forget_others()
        keeper = Keeper(home, chosen, float(sys.argv[2]))
        try:
            keeper.serve()
        finally:
            keeper.stop()
            (home / "run" / f"{NAME}.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
