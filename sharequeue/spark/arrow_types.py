"""Convert Spark's types to Arrow's, by PySpark's own functions, which are not public: their arguments differ between
the series of Spark.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["arrow_schema"]

# Timestamps are in UTC: by default until Spark 4.1, by an argument since 4.2.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Arrow's schema for one of Spark."""
    return to_arrow_schema(schema, **_IN_UTC)
