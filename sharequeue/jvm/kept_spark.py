"""Where does a kept JVM of Spark's stand, and how does a process reach the keeper that holds it?

One keeper a data folder, where `SHAREQUEUE_KEEP_SPARK_SECONDS` asks for one: `up` starts it, or the first run that
finds none. It listens on the loopback; port and secret are in a file that only its user reads. What it keeps and how
a run gets a session there is `spark/keeper.py`'s and `spark/kept.py`'s business. This module knows nothing of Spark,
so that `up`, `down` and `doctor` can use it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "NAME",
    "SECONDS",
    "Address",
    "NoKeeper",
    "SilentKeeper",
    "address_file",
    "ask",
    "begin",
    "connect",
    "log_file",
    "was_here",
]

NAME = "kept-spark"
SECONDS = 10.0
"""How long a keeper may take to say something before it counts as silent."""
_MARK = "SHAREQUEUE_COMPONENT"
RUNS_DEFAULTS = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
"""What a local session sets in the environment where nobody else has. Workers would run `python3`, whatever Spark's
settings say; and a host whose own name does not resolve would not start a JVM, which reads the address from here."""


class NoKeeper(Exception):
    """Nobody keeps a JVM here, or does not say so; the message says which."""


class SilentKeeper(NoKeeper):
    """A keeper is there, and says nothing: another one cannot take its place."""


@dataclass(frozen=True, slots=True)
class Address:
    """How a keeper is reached."""

    port: int
    secret: str


def address_file(home: Path) -> Path:
    """Name the file with the keeper's address; mode 0600."""
    return home / "run" / f"{NAME}.address"


def was_here(home: Path) -> bool:
    """Whether a keeper was ever started for this data folder."""
    return (address_file(home).with_suffix(".lock")).exists()


def log_file(home: Path) -> Path:
    """Name the log of the keeper and its JVM."""
    return home / "logs" / f"{NAME}.log"


def begin(home: Path, idle_seconds: int, conf: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a keeper in the background, which outlives us; one that finds another at work ends at once.

    It ends `idle_seconds` after the last run. Without `conf`, Spark is configured as the settings say.
    """
    log = log_file(home)
    for folder in (log.parent, address_file(home).parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    log.touch(mode=0o600)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sharequeue.spark.keeper", str(home), str(idle_seconds)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # With what every run sets by default, so that a run finds it alike; `down` finds it by the mark.
            env={**RUNS_DEFAULTS, **os.environ, _MARK: f"{home}#{NAME}"},
            start_new_session=True,
        )
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    # Not among the arguments or in the environment, which others can list: a configuration may have keys in it.
    with process.stdin as given:
        given.write(json.dumps(None if conf is None else dict(conf)).encode())
    return process


def connect(
    home: Path, request: Mapping[str, Any], seconds: float = SECONDS
) -> tuple[socket.socket, dict[str, Any]]:
    """Send the keeper a request, and return the open connection and the reply. Raises NoKeeper."""
    try:
        found = Address(**json.loads(address_file(home).read_text()))
    except FileNotFoundError:
        raise NoKeeper("no keeper was started") from None
    except (OSError, ValueError, TypeError) as error:
        raise NoKeeper(f"{address_file(home)} cannot be read ({error})") from None
    try:
        connection = socket.create_connection(("127.0.0.1", found.port), timeout=seconds)
    except OSError as error:
        raise NoKeeper(f"its keeper is gone ({error})") from None
    try:
        connection.sendall(json.dumps({"secret": found.secret, **request}).encode() + b"\n")
        line = connection.makefile("rb").readline()
        return connection, json.loads(line)
    except (OSError, ValueError):
        connection.close()
        raise SilentKeeper(f"its keeper said nothing within {seconds:g} s") from None


def ask(home: Path) -> dict[str, Any]:
    """Return what the keeper says of itself: `pid`, `attached`, `runs`, `idle_seconds`. Raises NoKeeper."""
    connection, reply = connect(home, {"wanted": "state"}, 2.0)
    connection.close()
    return reply
