"""Check that this machine can run the stack now: programs, disk, folder, ports.

Each check gives a `Finding`; every finding other than ok ends with what to do. Nothing is changed here, and `up` runs
these checks before it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sharequeue.local import ports, processes
from sharequeue.local.home import Home
from sharequeue.local.preflight import (
    DISK_NEEDED_TO_RUN,
    StackError,
    check_disk,
    check_name,
    check_python,
    check_writable,
    find_java,
)
from sharequeue.words.settings import Settings

__all__ = ["FAILURE", "OK", "WARNING", "Finding", "examine_machine"]

OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: `ok`, `warning` or `failure`, what was seen, and what to do."""

    subject: str
    level: str
    seen: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """The finding as text."""
        return f"{self.seen}: {self.remedy}" if self.remedy else self.seen


def examine_machine(settings: Settings, environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Check Python, Java, the data folder, the disk and the ports. Changes nothing; fast enough for every `up`."""
    home = Home.at(settings.home)

    def java() -> str:
        found = find_java(environment)
        return f"{found.version} at {found.home}"

    def disk() -> str:
        return f"{check_disk(home.path, DISK_NEEDED_TO_RUN) / 1024**3:.1f} GB free"

    def folder() -> str:
        check_name(home.path)
        check_writable(home.path)
        return str(home.path)

    checks: list[tuple[str, Callable[[], str]]] = [
        ("Python", check_python),
        ("Java", java),
        ("data folder", folder),
        ("disk", disk),
    ]
    return [_finding(subject, check) for subject, check in checks] + _ports(home)


def _finding(subject: str, check: Callable[[], str]) -> Finding:
    """Turn a preflight check, whose error already has what to do, into a finding."""
    try:
        return Finding(subject, OK, check())
    except StackError as error:
        return Finding(subject, FAILURE, str(error))


def _ports(home: Home) -> list[Finding]:
    """Find our ports that another program uses: a warning, because the next start takes another port."""
    findings = []
    for name, port in ports.recorded(home).items():
        component = "kafka" if name == "kafka-controller" else name
        if processes.find(home, component) is None and not ports.is_free(port):
            seen = f"port {port} of {name} is in use by another program"
            findings.append(
                Finding("ports", WARNING, seen, "stop it, or let the next `up` take another port")
            )
    return findings or [Finding("ports", OK, "free, or held by our own servers")]
