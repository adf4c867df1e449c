"""What the pages say of commands is true of every command there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from sharequeue.cli import command

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "operations.md"
READS = {
    *("status", "env", "doctor", "verify", "groups list", "groups describe", "state leases", "acls list"),
    *("dlq list", "dlq show", "journal changes", "journal days", "journal verify"),
}


def leaves(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    for name, each in group.commands.items():
        if isinstance(each, click.Group):
            yield from leaves(each, *names, name)
        else:
            yield " ".join((*names, name)), each


def test_what_acts_at_once_is_named() -> None:
    """Every command only reads, does nothing without `--execute`, or is named by the page as acting at once."""
    text = " ".join(PAGE.read_text().split())
    at_once = text[text.index("These act at once:") : text.index("have `--dry-run`")]
    for name, each in leaves(command):
        options = {option for parameter in each.params for option in parameter.opts}
        if name in READS:
            assert "--execute" not in options, name
        elif "--execute" not in options:
            assert f"`{name}`" in at_once, f"{name} acts at once, and the page does not say so"
    dry = text[text.index("Of these") : text.index("have `--dry-run`")]
    for name, each in leaves(command):
        if f"`{name}`" in dry:
            assert "--dry-run" in {option for parameter in each.params for option in parameter.opts}, name
