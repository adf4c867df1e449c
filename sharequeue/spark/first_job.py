"""Which classes does Spark's JVM need for a session, a first job and a first write?

`python -m sharequeue.spark.first_job FILE` does the three, so that the JVM writes their class-data archive to FILE
when it ends. Neither topics nor the connector are needed: its jars are no part of the class path.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sharequeue.jvm.class_archive import QUIET
from sharequeue.spark.gateway import start_gateway


def main() -> None:
    """Run once, and return when the archive is written."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    # Less is compiled, and it waits for no other processor: the classes are the same.
    options = f'"-XX:ArchiveClassesAtExit={sys.argv[1]}" {QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC'
    conf = SparkConf(loadDefaults=False).setMaster("local[2]").setAppName("first job")
    conf.set("spark.driver.memory", "512m").set("spark.driver.extraJavaOptions", options)
    conf.set("spark.ui.enabled", "false").set("spark.sql.shuffle.partitions", "2")
    # Started as a run starts it: an archive fits one class path.
    spark = SparkSession(SparkContext(conf=conf, gateway=start_gateway(conf)))
    with tempfile.TemporaryDirectory(prefix="sharequeue-classes-") as folder:
        _work(spark, Path(folder))
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with it, and the archive is written then
    sys.exit(gateway.proc.wait())


def _work(spark: SparkSession, folder: Path) -> None:
    def through(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from batches

    records = spark.range(1000).select(
        "id", f.col("id").cast("string").cast("binary").alias("value"), (f.col("id") % 3).alias("partition")
    )
    read = records.mapInArrow(through, records.schema)
    read.groupBy("partition").agg(f.min("id"), f.max("id"), f.count("*")).orderBy("partition").collect()
    other = spark.createDataFrame([(0, "a"), (1, "b")], "partition long, name string")
    joined = read.join(f.broadcast(other), "partition").dropDuplicates(["id"]).cache()
    joined.withColumn("name", f.upper("name")).write.partitionBy("partition").parquet(str(folder / "parquet"))
    joined.select("id", f.to_json(f.struct("name")).alias("value")).write.json(str(folder / "json"))
    spark.read.parquet(str(folder / "parquet")).createOrReplaceTempView("records")
    spark.sql("select name, count(*) from records where id > 10 group by name").toArrow()
    joined.unpersist()


if __name__ == "__main__":
    main()
