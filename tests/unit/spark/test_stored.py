"""Where the rows of a sink are, as a data catalog names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharequeue.spark import AtLeastOnce, DeltaTable, IcebergTable, ParquetByLease, PostgresTable
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.sinks.interface import Sink, Stored
from sharequeue.words.settings import Settings

NAMES = SinkNames("g", "orders")
DATABASE = "postgresql+psycopg2://ada:secret@db:5433/queue?sslmode=require"


@pytest.mark.parametrize(
    ("sink", "output", "expected"),
    [
        (ParquetByLease(), "/data/out", Stored("parquet", uri="file:///data/out/orders", for_the_queue=True)),
        (
            ParquetByLease(),
            "s3a://lake/out",
            Stored("parquet", uri="s3a://lake/out/orders", for_the_queue=True),
        ),
        (
            PostgresTable("sales.orders"),
            "/data/out",
            Stored("postgres", "queue.sales.orders", "postgresql://db:5433/queue"),
        ),
        (DeltaTable("sales.orders"), "/data/out", Stored("delta", "sales.orders")),
        (DeltaTable("s3a://lake/orders"), "/data/out", Stored("delta", uri="s3a://lake/orders")),
        (DeltaTable("/lake/orders"), "/data/out", Stored("delta", uri="file:///lake/orders")),
        (IcebergTable("lake.sales.orders"), "/data/out", Stored("iceberg", "lake.sales.orders")),
        (AtLeastOnce(lambda rows, lease: None), "/data/out", Stored()),
    ],
)
def test_each_sink_names_its_table_or_its_address(
    tmp_path: Path, sink: Sink, output: str, expected: Stored
) -> None:
    """No user and no password are in it, and nothing is asked for it."""
    settings = Settings({"home": tmp_path, "database_url": DATABASE, "output": output})
    assert sink.stored(settings, NAMES) == expected
