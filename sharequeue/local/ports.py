"""The port of each component.

It is the same port as last time, so that noted addresses stay valid, or another one if a different program uses it.
Ports are chosen below the system's range for outgoing connections, so that no client can take one between the choice
and the start.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

from sharequeue.local.home import Home, Progress, read_json, write_json
from sharequeue.local.preflight import StackError

__all__ = ["LOOPBACK", "PREFERRED", "accepts", "choose", "is_free", "recorded"]

LOOPBACK = "127.0.0.1"
PREFERRED: Mapping[str, int] = {
    "postgres": 25432,
    "kafka": 29092,
    "kafka-controller": 29093,
    "service": 28080,
    "dagster-webserver": 23000,
}
_RANGE = range(20000, 32000)


def is_free(port: int) -> bool:
    """Return whether a server could bind this port on the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as attempt:
        # As servers do: a port in TIME_WAIT from our last run counts as free.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def accepts(port: int) -> bool:
    """Return whether a process accepts connections on this port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def recorded(home: Home) -> dict[str, int]:
    """Return the ports recorded at earlier starts."""
    content = read_json(home.ports_file)
    if not isinstance(content, dict):
        return {}
    return {name: port for name, port in content.items() if name in PREFERRED and isinstance(port, int)}


def choose(home: Home, name: str, progress: Progress) -> int:
    """Return a free port for `name` and record it: the recorded one, else the preferred one, else any.

    The caller holds the home's lock. Reports a changed address with `progress`.
    """
    ports = recorded(home)
    before = ports.get(name)
    taken = {port for other, port in ports.items() if other != name}
    for port in _proposals(before or PREFERRED[name]):
        if port not in taken and is_free(port):
            break
    else:
        raise StackError(
            f"No free port for {name} between {_RANGE.start} and {_RANGE.stop}: stop some servers."
        )
    if before is not None and port != before:
        progress(f"{name}: port {before} is in use by another program: using {port} instead")
    if port != before:
        write_json(home.ports_file, {**ports, name: port})
    return port


def _proposals(first: int) -> list[int]:
    # Random, so that two stacks started at the same time seldom try the same port.
    return [first, *random.sample(_RANGE, 200)]
