"""Read Parquet files with different columns as one table.

A column that was added later is null in the older files. A column whose type was widened (int, later bigint) is read
as the wider type. Spark by itself uses the columns of one file for all files, or fails when a type differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import types as sql

from sharequeue.outputs.errors import changed
from sharequeue.spark.output.files import literal

_WHOLE = (sql.ByteType, sql.ShortType, sql.IntegerType, sql.LongType)
_WIDER: dict[tuple[type[sql.DataType], type[sql.DataType]], type[sql.DataType]] = {
    **{(narrow, wide): wide for at, narrow in enumerate(_WHOLE) for wide in _WHOLE[at + 1 :]},
    **{(narrow, sql.DoubleType): sql.DoubleType for narrow in (*_WHOLE[:3], sql.FloatType)},
    (sql.DateType, sql.TimestampNTZType): sql.TimestampNTZType,
}


def read_parquet(
    spark: SparkSession, paths: Sequence[str], schema: sql.StructType | str | None = None
) -> DataFrame:
    """Return the rows with all columns that any of these folders has, or those of `schema`. Raises ColumnChanged.

    A file that is missing, changed or cannot be read is an error, also where the session skips such files.
    """
    if schema is None:
        shapes = _shapes(spark, paths)
        schema = shapes[0] if len(shapes) == 1 else together(shapes)
    return _reader(spark).schema(schema).parquet(*map(literal, paths))


def _reader(spark: SparkSession) -> DataFrameReader:
    strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    # Spark writes these checksums, and compares them only then: otherwise a flipped byte may be another value.
    return spark.read.options(**strict, **{"parquet.page.verify-checksum.enabled": "true"})


def _shapes(spark: SparkSession, paths: Sequence[str]) -> list[sql.StructType]:
    """Return the columns of the folders; several entries if Spark cannot merge them; the incompatible groups are
    found by bisection.
    """
    try:
        return [_reader(spark).option("mergeSchema", "true").parquet(*map(literal, paths)).schema]
    except Exception as error:
        if "CANNOT_MERGE" not in str(error) or len(paths) == 1:
            raise
    half = len(paths) // 2
    return [*_shapes(spark, paths[:half]), *_shapes(spark, paths[half:])]


def together(shapes: Sequence[sql.StructType]) -> sql.StructType:
    """Return all columns of these, each with the type that can hold all values. Raises ColumnChanged."""
    kinds: dict[str, sql.DataType] = {}
    for shape in shapes:
        for field in shape.fields:
            one, other = kinds.get(field.name, field.dataType), field.dataType
            held = wider(one, other)
            if held is None:
                raise changed(field.name, one.simpleString(), other.simpleString())
            kinds[field.name] = held
    return sql.StructType([sql.StructField(name, kind) for name, kind in kinds.items()])


def nullable(kind: sql.StructType) -> sql.StructType:
    """Return columns with nulls allowed in all their parts, and only names and types, as files store them."""
    return sql.StructType([sql.StructField(each.name, _nullable(each.dataType)) for each in kind.fields])


def _nullable(kind: sql.DataType) -> sql.DataType:
    if isinstance(kind, sql.StructType):
        return nullable(kind)
    if isinstance(kind, sql.ArrayType):
        return sql.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, sql.MapType):
        return sql.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def wider(one: sql.DataType, other: sql.DataType) -> sql.DataType | None:
    """Return the type that can hold both, as Parquet's readers can produce it; None when there is none."""
    if one == other:
        return one
    if isinstance(one, sql.DecimalType) and isinstance(other, sql.DecimalType):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale)
        return sql.DecimalType(digits + scale, scale) if digits + scale <= 38 else None
    if isinstance(one, sql.NullType) or isinstance(other, sql.NullType):
        return other if isinstance(one, sql.NullType) else one
    found = _WIDER.get((type(one), type(other))) or _WIDER.get((type(other), type(one)))
    return found() if found is not None else None
