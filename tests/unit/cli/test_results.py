"""The options of `sharequeue results`, without a server."""

from __future__ import annotations

from click.testing import CliRunner

from sharequeue.cli import command


def test_unsent_rows_are_given_up_only_with_the_rest() -> None:
    """Otherwise the rows would be sent."""
    words = ["results", "resume", "--group", "g", "--sink", "s", "--to", "t", "--also-unsent"]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert "--also-unsent: give it with --count-as-written" in result.output
