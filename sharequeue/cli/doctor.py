"""`sharequeue doctor`: check this machine, the servers, the schema and the clock."""

from __future__ import annotations

from dataclasses import asdict

import click

from sharequeue.cli.options import settings_options
from sharequeue.cli.output import Output, answers, text
from sharequeue.domain.settings import Settings
from sharequeue.local import doctor as examination

_SIGNS = {examination.OK: "ok", examination.WARNING: "!!", examination.FAILURE: "XX"}


@click.command()
@settings_options
@answers(text("SUBJECT"), text("LEVEL"), text("SEEN"), text("REMEDY"))
def doctor(settings: Settings, output: Output) -> None:
    """Check Python, Java, disk, ports, servers, versions, schema and clock; exit code 1 on a failure."""
    findings = examination.examine(settings)
    if not output.text:
        output.rows(asdict(finding) for finding in findings)
    for finding in findings:
        output.note(f"{_SIGNS[finding.level]}  {finding.subject:<12} {finding.text}")
    if any(finding.level == examination.FAILURE for finding in findings):
        raise click.exceptions.Exit(1)


COMMANDS = (doctor,)
