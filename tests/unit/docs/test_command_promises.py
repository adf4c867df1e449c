"""What the pages say of commands is true of every command there is."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.test_grammar import AT_ONCE, COMMANDS, KAFKAS, READS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "operations.md"


def test_what_acts_at_once_is_named() -> None:
    """Every command only reads, does nothing without `--execute`, or is named by the page as acting at once."""
    text = " ".join(PAGE.read_text().split())
    at_once = text[text.index("These act at once:") : text.index("have `--dry-run`")]
    for name, each in COMMANDS.items():
        options = {option for parameter in each.params for option in parameter.opts}
        if name not in READS | KAFKAS and "--execute" not in options:
            assert name in AT_ONCE
            assert f"`{name}`" in at_once, f"{name} acts at once, and the page does not say so"
    dry = text[text.index("Of these") : text.index("have `--dry-run`")]
    for name, each in COMMANDS.items():
        if f"`{name}`" in dry:
            assert "--dry-run" in {option for parameter in each.params for option in parameter.opts}, name
