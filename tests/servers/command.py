"""Run `sharequeue` without its start-up: a process that has imported the command forks for each call.

A call has its own folder, environment, input and output, as a process of its own has. What the start of the real
command does is shown by `tests/integration/cli/test_cli.py`.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
CLIENT = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"c"], [0, 1, 2])
    call = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    server.sendall(json.dumps(call).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(16) or 1))
"""


@contextmanager
def command_server(folder: Path) -> Iterator[Path]:
    """Serve calls of the command; give a folder with a program `sharequeue` that makes them, for the PATH."""
    address, programs = str(folder / "command.socket"), folder / "programs"
    programs.mkdir()
    client = folder / "client.py"
    client.write_text(CLIENT.format(address=address))
    program = programs / "sharequeue"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -ISB "{client}" "$@"\n')
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        # It ends with its input.
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.command", str(listening.fileno())],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()],
        )
    try:
        yield programs
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(PATIENCE_S)


def serve(listening: socket.socket) -> None:
    """Fork for each call until the input ends."""

    import sharequeue.cli  # noqa: F401 - what each call has at once

    # Each call would search all of this for garbage when it ends: nine tenths of its CPU time.
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listening.fileno(), 0], [], [])
        if 0 in ready:
            return
        call, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _carry_out(call)
        call.close()


def _carry_out(call: socket.socket) -> NoReturn:
    """Run one call in a child of this process, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(call, 1, 3)
    text = b"".join(iter(lambda: call.recv(1 << 16), b""))
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        call.sendall(str(os.waitstatus_to_exitcode(status) & 0xFF).encode())
        os._exit(0)
    call.close()
    given = json.loads(text)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv = ["sharequeue", *given["arguments"]]
    sys.modules["__main__"].__package__ = None  # or the command would be called by it
    from sharequeue.cli import main

    main()
    sys.exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
