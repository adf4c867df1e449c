"""Find, start and stop a component that listens at a port of its own.

Its process is in `processes`, its port in `ports`; its command, and when it is ready, are in its own module.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from sharequeue.local import ports, processes
from sharequeue.local.home import Home, Progress
from sharequeue.local.preflight import StackError
from sharequeue.local.processes import Running

__all__ = ["find", "responds", "start_at_a_port", "stop"]

_ATTEMPTS = 3


def find(home: Home, name: str) -> tuple[Running, int] | None:
    """Return the running component and its port, or None."""
    running = processes.find(home, name)
    port = ports.recorded(home).get(name)
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
        port = ports.choose(home, name, progress)
        try:
            start(port)
        except StackError:
            if attempt == _ATTEMPTS or not processes.lost_its_port(home.logs / f"{name}.log"):
                raise
            before_retry()
            continue
        break
    return port


def stop(home: Home, name: str, *, polite: signal.Signals = signal.SIGTERM, seconds: float) -> bool:
    """Stop the component: with `polite` first, with SIGKILL after `seconds`. Return False if it was not running."""
    running = processes.find(home, name)
    if running is not None:
        processes.stop(home, running, polite=polite, seconds=seconds)
    return running is not None


def responds(url: str) -> bool:
    """Return whether a GET of this address succeeds."""
    # Imported here: the import takes a fifth of the start time of any command.
    import httpx

    try:
        return httpx.get(url, timeout=2, trust_env=False).is_success
    except httpx.HTTPError:
        return False
