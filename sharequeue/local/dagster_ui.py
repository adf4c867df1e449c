"""Run Dagster's webserver and daemon against the embedded stack, as processes.

Dagster is started, never imported. It loads the `workspace.yaml` of the working directory, or else of the
checkout. Its instance settings are a `dagster.yaml` copied into `<home>/dagster`, so that its files stay in the
data folder.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from sharequeue.domain.settings import Settings
from sharequeue.local import ports, processes
from sharequeue.local.home import Home, Progress
from sharequeue.local.preflight import StackError
from sharequeue.local.processes import ProcessStart

__all__ = ["NAMES", "addresses", "environment", "prepare", "project", "start"]

WORKSPACE, INSTANCE = "workspace.yaml", "dagster.yaml"
_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parent
WEBSERVER = "dagster-webserver"
DAEMON = "dagster-daemon"
NAMES = (WEBSERVER, DAEMON)


def project() -> Path:
    """Return the folder with the `workspace.yaml` for Dagster.

    It is the working directory, or else the checkout of this package.

    Raises StackError if neither has one.
    """
    for folder in (Path.cwd(), _CHECKOUT):
        if (folder / WORKSPACE).is_file():
            return folder
    raise StackError(
        f"No {WORKSPACE} in {Path.cwd()}: start the UI in the folder of a project. `sharequeue init` creates one."
    )


def prepare(home: Home) -> Path:
    """Put the instance settings into the home's `DAGSTER_HOME` and return it.

    They are the project's `dagster.yaml` if it has one, else the one of this package.
    """
    home.create()
    wanted = _instance_settings().read_text()
    target = home.dagster / INSTANCE
    if not target.exists() or target.read_text() != wanted:
        target.write_text(wanted)
    return home.dagster


def _instance_settings() -> Path:
    for found in (Path.cwd() / INSTANCE, _CHECKOUT / INSTANCE, _PACKAGE / f"_{INSTANCE}"):
        if found.is_file():
            return found
    raise StackError(f"No {INSTANCE} in {_PACKAGE}: the installation is incomplete, install it again.")


def addresses(settings: Settings) -> dict[str, str]:
    """Return the variables with the stack's addresses for Dagster and its runs."""
    return {
        "SHAREQUEUE_HOME": str(settings.home),
        "SHAREQUEUE_DAGSTER_URL": settings.dagster_url,
        "DAGSTER_HOME": str(Home.at(settings.home).dagster),
    }


def environment(settings: Settings) -> dict[str, str]:
    """Return the complete environment of Dagster's processes."""
    # The folder of our interpreter first, so that `dagster` is this environment's.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **addresses(settings), "PATH": path}


def start(settings: Settings, progress: Progress) -> str:
    """Start the webserver and the daemon unless they are running, and return the URL."""
    home = Home.at(settings.home)
    with home.lock(progress):
        prepare(home)
        root = project()
        workspace = ("-w", str(root / WORKSPACE))
        daemon = processes.find(home, DAEMON)
        if daemon is None:
            command = [_program("dagster-daemon"), "run", *workspace]
            processes.start(home, ProcessStart(DAEMON, command, environment(settings), directory=root))
        webserver = processes.find(home, WEBSERVER)
        port = ports.recorded(home).get(WEBSERVER)
        if webserver is None or port is None:
            port = ports.choose(home, WEBSERVER, progress)
            where = ("-h", ports.LOOPBACK, "-p", str(port))
            command = [_program("dagster-webserver"), *where, *workspace]
            webserver = processes.start(
                home, ProcessStart(WEBSERVER, command, environment(settings), directory=root)
            )
        url = f"http://{ports.LOOPBACK}:{port}"
        processes.wait_until(webserver, lambda: ports.responds(f"{url}/server_info"), 90)
        daemon = processes.find(home, DAEMON)
        if daemon is None:
            log = home.logs / f"{DAEMON}.log"
            raise StackError(f"{DAEMON} ended while it was starting.\n{processes.log_tail(log)}")
    return url


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise StackError(
            f"{name} is not installed in this environment: run `make` again, or pip install -e ."
        )
    return found
