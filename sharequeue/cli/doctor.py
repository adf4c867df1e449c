"""`sharequeue doctor`: is everything as it must be?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from sharequeue import doctor as examination
from sharequeue.cli.output import home_option, output_option, print_rows
from sharequeue.settings import Settings

_SIGNS = {examination.OK: "ok", examination.WARNING: "!!", examination.FAILURE: "XX"}


@click.command()
@home_option
@output_option
def doctor(home: Path | None, output: str) -> None:
    """Check Python, Java, disk, ports, servers, versions, schema and clock; exit code 1 on a failure."""
    findings = examination.examine(Settings.load(home))
    if output == "json":
        print_rows((), [asdict(finding) for finding in findings], output)
    else:
        for finding in findings:
            click.echo(f"{_SIGNS[finding.level]}  {finding.subject:<12} {finding.text}")
    if any(finding.level == examination.FAILURE for finding in findings):
        raise click.exceptions.Exit(1)


COMMANDS = (doctor,)
