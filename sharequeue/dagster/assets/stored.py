"""The metadata of an output for Dagster's catalog: where its rows are, and their columns."""

import json
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.state import State
from sharequeue.words.settings import Settings

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline


def stored_rows(job: "Pipeline", settings: Settings, state: State) -> dict[str, Any]:
    """Return where the accepted rows of a pipeline are, and the columns that runs have written so far."""
    from pyspark.sql.types import StructType

    from sharequeue.spark.sinks.interface import NEVER
    from sharequeue.spark.sinks.parquet import ParquetByLease

    stored = (job.destination or ParquetByLease()).stored(settings, job.names)
    written = state.outputs.keep_columns(job.group, job.sink)
    columns = [] if written is None else StructType.fromJson(json.loads(written)).fields
    terms = {"uri": stored.uri, "table_name": stored.table, "storage_kind": stored.kind}
    return {
        **{f"dagster/{name}": term for name, term in terms.items() if term is not None},
        **column_schema(
            {
                each.name: each.dataType.simpleString()
                for each in columns
                if stored.for_the_queue or each.name not in NEVER
            }
        ),
    }


def column_schema(columns: dict[str, str]) -> dict[str, Any]:
    """Return columns, with the names of their types, as Dagster's catalog shows them; nothing without columns."""
    if not columns:
        return {}
    return {
        "dagster/column_schema": dg.TableSchema(
            columns=[dg.TableColumn(name, kind) for name, kind in columns.items()]
        )
    }
