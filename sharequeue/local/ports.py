"""The port of each component, and components at their ports.

A port is the same as last time, so that noted addresses stay valid, or another one if a different program uses it.
They are chosen below the system's range for outgoing connections, so that no client can take one between the choice
and the start.
"""

from __future__ import annotations

import random
import signal
import socket
import threading
from collections.abc import Callable, Mapping

from sharequeue.local import processes
from sharequeue.local.home import Home, Progress, read_json, write_json
from sharequeue.local.preflight import StackError
from sharequeue.local.processes import Running

__all__ = [
    "LOOPBACK",
    "PREFERRED",
    "accepts",
    "choose",
    "find",
    "is_free",
    "recorded",
    "responds",
    "start_at_a_port",
    "stop",
]

LOOPBACK = "127.0.0.1"
PREFERRED: Mapping[str, int] = {
    "postgres": 25432,
    "kafka": 29092,
    "kafka-controller": 29093,
    "service": 28080,
    "dagster-webserver": 23000,
}
_RANGE = range(20000, 32000)
_ATTEMPTS = 3
_choosing = threading.Lock()
"""Postgres and the broker start in two threads, and both record their port in one file."""
_POLITE = {"postgres": signal.SIGINT}
"""The signal that ends a component, if it is not SIGTERM. SIGINT is Postgres's "fast": it disconnects clients."""


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
    with _choosing:
        return _choose(home, name, progress)


def _choose(home: Home, name: str, progress: Progress) -> int:
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


def find(home: Home, name: str) -> tuple[Running, int] | None:
    """Return the running component and its port, or None."""
    running = processes.find(home, name)
    port = recorded(home).get(name)
    return (running, port) if running is not None and port is not None else None


def start_at_a_port(
    home: Home,
    name: str,
    start: Callable[[int], None],
    progress: Progress,
    *,
    before_retry: Callable[[], None] = lambda: None,
) -> int:
    """Choose a port and start the component with `start`, which returns when it is ready; return the port.

    Another program may have bound the port between the choice and the start: then another port is chosen, after
    `before_retry`. Raises StackError.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        port = choose(home, name, progress)
        try:
            start(port)
        except StackError:
            if attempt == _ATTEMPTS or not processes.lost_its_port(home.logs / f"{name}.log"):
                raise
            before_retry()
            continue
        break
    return port


def stop(home: Home, name: str) -> bool:
    """Stop a component; return False if it was not running."""
    running = processes.find(home, name)
    if running is not None:
        processes.stop(home, running, polite=_POLITE.get(name, signal.SIGTERM))
    return running is not None


def responds(url: str) -> bool:
    """Return whether a GET of this address succeeds."""
    # Imported here: the import takes a fifth of the start time of any command.
    import httpx

    try:
        return httpx.get(url, timeout=2, trust_env=False).is_success
    except httpx.HTTPError:
        return False
