"""The arguments TOPIC, PARTITION and OFFSET, which name one record."""

from __future__ import annotations

from collections.abc import Callable

import click

from sharequeue.cli.options import OFFSET, PARTITION, topic_argument

__all__ = ["RecordCommand", "record_arguments"]


class RecordCommand(click.Command):
    """A command with `record_arguments`. It refuses a negative number as one that is out of range."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, and return what is left of it."""
        try:
            return super().parse_args(ctx, [*args])
        except click.NoSuchOption as error:
            # Click takes -5 for an option.
            if not error.option_name.removeprefix("-").isdigit():
                raise
            ctx.ignore_unknown_options = True
            return super().parse_args(ctx, args)


def record_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments; the command gets `topic`, `partition` and `offset`."""
    for argument in (
        click.argument("offset", type=OFFSET),
        click.argument("partition", type=PARTITION),
        topic_argument,
    ):
        command = argument(command)
    return command
