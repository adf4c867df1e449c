"""`sharequeue compact`: merge the small files of a sink into few large ones."""

from __future__ import annotations

from datetime import timedelta

import click

from sharequeue.cli.options import LONGEST_SECONDS, Whole, execute_option, group_option, settings_options
from sharequeue.cli.output import Output, answers, number, text
from sharequeue.cli.run import pipeline_code
from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.names import nearest
from sharequeue.domain.settings import Settings
from sharequeue.groups.group_names import require_group
from sharequeue.state import State

_TARGET_MIB = 128
_GRACE_SECONDS = 3600


@click.command()
@settings_options
@answers(text("GROUP"), text("SINK"), text("STEP"), number("FOLDERS"), number("RECORDS"), text("LOCATION"))
@group_option
@click.option("--sink", required=True, help="The sink, or one of its `-exceptions` and summaries.")
@click.option(
    "--target-mib",
    type=Whole(1),
    default=_TARGET_MIB,
    show_default=True,
    help="Target size of a file; folders below half of it are merged.",
)
@click.option(
    "--grace-seconds",
    type=Whole(0, LONGEST_SECONDS),
    default=_GRACE_SECONDS,
    show_default=True,
    help="How long readers may use replaced folders, which are removed after that.",
)
@execute_option
def compact(
    settings: Settings,
    output: Output,
    execute: bool,
    group: str,
    sink: str,
    target_mib: int,
    grace_seconds: int,
) -> None:
    """Merge the small files of a sink, then remove folders that were replaced longer ago than the grace.

    Readers see the old folders or the new one, and each record once, at any time.
    """
    # Imported here: other commands do not need Spark.
    from sharequeue.spark import spark_session
    from sharequeue.spark.output import compaction
    from sharequeue.spark.output.shared_folder import refuse_unusable

    rows: list[dict[str, object]] = []
    with Database.open(settings) as database:
        require_group(database, group)
        state = State(database)
        if sink not in (known := state.outputs.sinks(group)):
            raise InvalidRequest(
                f"Group {group} has no acknowledged output in a sink {sink}. {nearest(sink, known, 'sinks')}"
            )
        with pipeline_code(output):
            spark = spark_session(settings, "compaction")
            refuse_unusable(spark, settings, settings.output)
            done = compaction.compact(
                spark, settings, state, group, sink, target_bytes=target_mib * 2**20, dry_run=not execute
            )
            rows += [
                {
                    "step": "compact",
                    "folders": len(each.replaced),
                    "records": each.records,
                    "location": each.location or None,
                }
                for each in done
            ]
            removed = compaction.sweep_compactions(
                spark,
                settings,
                state,
                group,
                sink,
                grace=timedelta(seconds=grace_seconds),
                dry_run=not execute,
            )
            rows += [{"step": "remove", "folders": 1, "location": folder} for folder in removed]
    output.rows([{"group": group, "sink": sink, **row} for row in rows])


COMMANDS = (compact,)
