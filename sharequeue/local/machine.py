"""Can this machine run the stack now: its programs, its disk, its folder, its ports?

Each thing that was looked at is a `Finding`; every finding that is not fine ends with what to do. Nothing is changed
here, and `up` asks it before it changes anything.
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
from sharequeue.settings import Settings

__all__ = ["FAILURE", "OK", "WARNING", "Finding", "examine_machine"]

OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: `ok`, `warning` or `failure`, what was seen, and what to do about it."""

    subject: str
    level: str
    seen: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """The sentence for a reader."""
        return f"{self.seen}: {self.remedy}" if self.remedy else self.seen


def examine_machine(settings: Settings, environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Look at Python, Java, the data folder, the disk and the ports. Harmless, and quick enough for every
    `up`.
    """
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
    return [_told(subject, check) for subject, check in checks] + _ports(home)


def _told(subject: str, check: Callable[[], str]) -> Finding:
    """Turn a preflight check, whose error already has what to do, into a finding."""
    try:
        return Finding(subject, OK, check())
    except StackError as error:
        return Finding(subject, FAILURE, str(error))


def _ports(home: Home) -> list[Finding]:
    """A port of ours that somebody else holds is no failure: the next start takes another."""
    findings = []
    for name, port in ports.recorded(home).items():
        component = "kafka" if name == "kafka-controller" else name
        if processes.find(home, component) is None and not ports.is_free(port):
            seen = f"port {port} of {name} is in use by another program"
            findings.append(
                Finding("ports", WARNING, seen, "stop it, or let the next `up` take another port")
            )
    return findings or [Finding("ports", OK, "free, or held by our own servers")]
