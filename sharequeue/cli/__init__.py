"""The `sharequeue` command: for operators, one noun a module.

Results go to stdout, as text or JSON; errors are one line on stderr. Exit codes: 0 done, 1 it could not be
done or a check failed, 2 the command line is wrong. Kafka's column names are kept where Kafka's tools have
them.
"""

from __future__ import annotations

import sys

import click
from sqlalchemy.exc import OperationalError

from sharequeue.cli import (
    acls,
    deadletters,
    doctor,
    groups,
    init,
    journal,
    offsets,
    replay,
    report,
    run,
    schema,
    service,
    stack,
    state,
)
from sharequeue.database.migrations import SchemaBusy
from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.errors import ShareError
from sharequeue.extras import ExtraMissing
from sharequeue.local.preflight import StackError
from sharequeue.settings import SettingMissing

__all__ = ["command", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sharequeue")
def command() -> None:
    """Share groups over Kafka topics, for batch: the queue, its servers, its state."""


for module in (
    init,
    stack,
    doctor,
    service,
    run,
    replay,
    schema,
    groups,
    offsets,
    state,
    report,
    journal,
    deadletters,
    acls,
):
    for each in module.COMMANDS:
        command.add_command(each)


def main() -> None:
    """Run the command; expected errors become one line on stderr and exit code 1."""
    try:
        # Without click's own handling, an `Exit` comes back as its code.
        sys.exit(command.main(standalone_mode=False) or 0)
    except (click.Abort, KeyboardInterrupt):
        _fail("stopped", 130)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), 1)
    except ShareError as error:
        _fail(f"{error.name}: {error}", 1)
    except (StackError, SettingMissing, SchemaOutdated, SchemaBusy, ExtraMissing) as error:
        _fail(str(error), 1)
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()[0]
        _fail(f"The database does not answer ({reason}): run `sharequeue doctor`.", 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def _fail(message: str, code: int) -> None:
    click.echo(f"Error: {message}", err=True)
    sys.exit(code)
