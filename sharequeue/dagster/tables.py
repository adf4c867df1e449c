"""Tables in Dagster's metadata."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import dagster as dg

from sharequeue.domain.figures import SharePartitionStatus, figures_of, words_of

Columns = Mapping[str, str]
"""The names of columns, each with Dagster's name of its type."""
OF_RECORDS = {
    "topic": "The record's topic.",
    "partition": "The record's partition.",
    "offset": "The record's offset.",
    "lease_id": "The lease in which the record was delivered.",
    "delivery_count": "How often the record was delivered, the last time included.",
    "outcome": "What the handler decided.",
    "error": "The handler's reason.",
}
"""The descriptions of the columns that every output has."""
_SPELLED_OUT = {name: words_of(SharePartitionStatus, name) for name in ("spso", "speo")}
"""The descriptions of columns whose names are abbreviations."""


def table(columns: Columns, rows: Iterable[Sequence[Any]]) -> dg.TableMetadataValue:
    """Return a table of rows with a cell for each column."""
    return dg.MetadataValue.table(
        records=[
            dg.TableRecord({name: _cell(cell) for name, cell in zip(columns, row, strict=True)})
            for row in rows
        ],
        schema=dg.TableSchema(
            columns=[dg.TableColumn(name, kind, _SPELLED_OUT.get(name)) for name, kind in columns.items()]
        ),
    )


def table_of(columns: Columns, rows: Iterable[object]) -> dg.TableMetadataValue:
    """Return a table of objects with an attribute for each column."""
    return table(columns, ([getattr(row, name) for name in columns] for row in rows))


def figure_columns(kind: type) -> Columns:
    """Return as columns the figures of GroupFigures or SharePartitionStatus that pages show."""
    kinds = {"text": "string", "time": "string", "seconds": "float", "records/s": "float"}
    return {each.name: kinds.get(each.unit, "int") for each in figures_of(kind) if each.title}


def column_schema(columns: Columns) -> dict[str, Any]:
    """Return columns, with the names of their types, as Dagster's catalog shows them; nothing without columns."""
    if not columns:
        return {}
    return {
        "dagster/column_schema": dg.TableSchema(
            columns=[dg.TableColumn(name, kind) for name, kind in columns.items()]
        )
    }


def _cell(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value
