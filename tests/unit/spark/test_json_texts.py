"""What Spark is asked to do for each JSON record."""

from __future__ import annotations

from pyspark.sql.types import StringType, StructField, StructType

from sharequeue.spark.formats.decoded_column import TEXT
from sharequeue.spark.formats.json_values import _is_one_value, _is_whole

OBJECT = StructType([StructField("end", StringType())])


def test_a_text_is_parsed_a_second_time_only_where_that_is_needed() -> None:
    """Spark evaluates what an expression has twice before it, also behind an `or`: for each record of a topic."""
    for kind in (StringType(), OBJECT):
        assert _is_one_value(TEXT, kind).count("from_json(") == 1
    whole = _is_whole(TEXT)
    assert whole.count("from_json(") == 1
    assert whole.index("substring_index") < whole.index("from_json(")
