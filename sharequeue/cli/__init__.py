"""The `sharequeue` command for operators, with one module per noun.

Results go to stdout, as text or JSON; warnings and errors go to stderr. Exit codes: 0 done, 1 refused or failed,
2 the command line is wrong. Options and columns have the names of Kafka's tools if those have them. Code that all
commands share is in `options`, `output` and `failures`.
"""

from __future__ import annotations

import logging
import os
import select
import sys

import click
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.cli import (
    acls,
    audit,
    compact,
    configs,
    consuming,
    deadletters,
    doctor,
    groups,
    init,
    jars,
    journal,
    offsets,
    replay,
    report,
    results,
    run,
    schema,
    service,
    stack,
    state,
    tokens,
    trace,
)
from sharequeue.cli.failures import CommandRefused, code_of, database_failure, print_failure, setting_failure
from sharequeue.cli.kafka import groups as kafka_groups
from sharequeue.database.migrations import EncodingNotSupported, SchemaBusy, SchemaForbidden
from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.domain.errors import ShareError
from sharequeue.domain.extras import ExtraMissing
from sharequeue.domain.settings import SettingInvalid, SettingMissing
from sharequeue.local.preflight import StackError

__all__ = ["command", "main"]

_NAME = "sharequeue"
_STDOUT = 1
_EXPECTED = (
    ShareError,
    StackError,
    SettingMissing,
    SchemaOutdated,
    SchemaBusy,
    SchemaForbidden,
    EncodingNotSupported,
    ExtraMissing,
)
"""Errors whose text is for operators."""
_COMPLETION = "_SHAREQUEUE_COMPLETE"
"""The variable by which a shell asks click for completions."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sharequeue")
def command() -> None:
    """Share groups on Kafka topics, for batch jobs: manage groups, their state and the local servers."""


for module in (
    init,
    stack,
    jars,
    doctor,
    service,
    run,
    replay,
    compact,
    consuming,
    schema,
    groups,
    configs,
    offsets,
    state,
    report,
    journal,
    deadletters,
    trace,
    results,
    acls,
    tokens,
    audit,
    kafka_groups,
):
    for each in module.COMMANDS:
        command.add_command(each)


def main() -> None:
    """Run the command; expected errors become one line on stderr and exit code 1."""
    # Kafka's client logs each attempt, but the final error has the reason; the service has its own log handler.
    logging.getLogger("sharequeue.librdkafka").addHandler(logging.NullHandler())
    try:
        sys.exit(_called())
    except (click.Abort, KeyboardInterrupt) as error:
        _fail("", str(error) or "stopped", 130)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except CommandRefused as error:
        _fail(error.code, error.format_message(), 1)
    except click.ClickException as error:
        _fail("", error.format_message(), 1)
    except _EXPECTED as error:
        _fail(code_of(error), str(error), 1)
    except SQLAlchemyError as error:
        refused = database_failure(error)
        _fail(refused.code, refused.format_message(), 1)
    except (ValidationError, SettingInvalid) as error:
        refused = setting_failure(error)
        _fail(refused.code, refused.format_message(), 1)
    except OSError as error:
        _fail(code_of(error), str(error), 1)


def _fail(code: str, message: str, status: int) -> None:
    print_failure(code, message)
    sys.exit(status)


def _called() -> int:
    """Run the command, and return its exit code.

    `command.main` would end with 1, and say nothing, for every closed pipe: that of a reader such as `head`, which
    has seen enough, and that of a lost connection, which is a failure.
    """
    if _COMPLETION in os.environ:
        command.main(prog_name=_NAME)  # prints what a shell asks for, and exits
    try:
        with command.make_context(_NAME, sys.argv[1:]) as context:
            return command.invoke(context) or 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except EOFError as error:
        raise click.Abort from error
    except BrokenPipeError:
        if not _is_closed(_STDOUT):
            raise
        # Otherwise Python would try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        return 0


def _is_closed(output: int) -> bool:
    """Return whether the reader of a pipe has closed it."""
    poll = select.poll()
    poll.register(output, 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))
