"""The coordinator service of the embedded stack, as a process: `sharequeue serve` on the loopback address.

Its work is in the package `sharequeue.service`; this module starts it, checks its health, and
stops it.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import psutil

from sharequeue.local import ports, processes
from sharequeue.local.home import Home, Progress
from sharequeue.local.processes import ProcessStart, Running

__all__ = ["NAME", "ensure", "healthy"]

NAME = "service"


def ensure(home: Home, addresses: dict[str, str], progress: Progress) -> int:
    """Start the service with `addresses` unless it is running, and return its port.

    The caller holds the home's lock. A service that was started with other addresses is restarted.
    """
    found = ports.find(home, NAME)
    if found is not None:
        running, port = found
        if not _started_with(running, addresses):
            progress("service: the addresses have changed: restarting it")
            processes.stop(home, running)
        elif processes.comes_up(running, partial(_answers, running, port), 60):
            return port

    def start(port: int) -> None:
        command = [
            sys.executable,
            "-m",
            "sharequeue.cli",
            "serve",
            "--host",
            ports.LOOPBACK,
            "--port",
            str(port),
        ]
        environment = {**os.environ, **addresses, "SHAREQUEUE_HOME": str(home.path)}
        running = processes.start(home, ProcessStart(NAME, command, environment, directory=home.path))
        processes.wait_until(running, partial(_answers, running, port), 60)

    return ports.start_at_a_port(home, NAME, start, progress)


def healthy(port: int) -> bool:
    """Return whether the service's `/health` succeeds."""
    return ports.responds(f"http://{ports.LOOPBACK}:{port}/health")


def _answers(running: Running, port: int) -> bool:
    """Return whether *our* service responds: another stack's may respond on a port that ours did not get."""
    return healthy(port) and _listens(running, port)


def _listens(running: Running, port: int) -> bool:
    try:
        connections = running.process.net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(
        each.laddr.port == port and each.status == psutil.CONN_LISTEN for each in connections if each.laddr
    )


def _started_with(running: Running, addresses: dict[str, str]) -> bool:
    try:
        environment = running.process.environ()
    except psutil.Error:
        return False
    return all(environment.get(name) == value for name, value in addresses.items())
