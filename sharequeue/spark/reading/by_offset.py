"""Read leased records by their offsets, without Spark's connector.

The connector cannot represent every record that a log may have (`source.py`). Tasks read such records with
confluent-kafka (`offset_reader.py`): each leased range of offsets is read on its own. A scan is faster, so this is
done only after a scan has failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import portable_config
from sharequeue.spark.arrow_types import arrow_schema
from sharequeue.spark.reading.offset_reader import OffsetReader
from sharequeue.spark.reading.options import ISOLATION, READER_OPTIONS


def records_by_offset(
    spark: SparkSession,
    settings: Settings,
    ranges: pa.Table,
    options: Mapping[str, str],
    *,
    headers: bool,
    schema: str,
) -> DataFrame:
    """Return the records of a table of ranges, each of which is read by one task. `options` are the connector's,
    which override our own.
    """
    wanted = ranges.sort_by(
        [("r_topic", "ascending"), ("r_partition", "ascending"), ("r_first", "ascending")]
    )
    tasks = max(1, min(spark.sparkContext.defaultParallelism, wanted.num_rows))
    config: dict[str, Any] = {**portable_config(settings), "isolation.level": options[ISOLATION]}
    seconds = int({**READER_OPTIONS, **options}["kafkaConsumer.pollTimeoutMs"]) / 1000
    columns = arrow_schema(cast("StructType", StructType.fromDDL(schema)))
    reader = OffsetReader(config, wanted, tasks, columns, headers=headers, seconds=seconds)
    return spark.range(0, tasks, 1, tasks).mapInArrow(reader, schema)
