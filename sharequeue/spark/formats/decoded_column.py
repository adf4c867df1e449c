"""Put a decoded value and its outcome into a record.

The decoded value replaces the bytes; `outcome` and `error` are added. The form is the same for every format, so that
a handler does not depend on the format. Expressions are texts of SQL, `raw` is the quoted name of the bytes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.spark.handler import ACCEPT, REJECT
from sharequeue.spark.sql_texts import quoted, select_texts, text_literal

DECODED = "sharequeue_decoded"
"""The column in which a format stores the decoded value, until `decided` moves it to its final column."""
TEXT = "sharequeue_text"
"""The column in which a format stores a text that it needs several times."""
FIELDS = "sharequeue_fields"
"""The column in which a format stores the fields of a text that it has not read completely; null if it has."""
NOTHING = "no value"
_ERROR = "sharequeue_error"
_OURS = (DECODED, TEXT, FIELDS, _ERROR)


def of_registry(raw: str) -> str:
    """Return whether bytes begin like those of a registry's serializer: a zero byte, then four bytes of schema id."""
    return f"(length({raw}) >= 5 and substring({raw}, 1, 1) = X'00')"


def after_registry(raw: str) -> str:
    """Return the bytes that follow those of a registry's serializer."""
    return f"substring({raw}, 6, {2**31 - 1})"


def shown(raw: str) -> str:
    """Return the number of bytes and the first of them, for the error of a record."""
    beginning = (
        f"if(length({raw}) = 0, '', concat(', beginning with 0x', lower(hex(substring({raw}, 1, 8)))))"
    )
    return f"concat(cast(length({raw}) as string), ' bytes', {beginning})"


def decided(records: DataFrame, column: str, value: str, error: str) -> DataFrame:
    """Replace `column` by `value`, or by null where `error` is not null, and add the outcome.

    `records` has the format's result in `DECODED`, which is left out, with all columns in `_OURS`. Null bytes are an
    error, too. If `records` already has an outcome, because another column was decoded, an earlier failure is kept.
    """
    error = f"if({quoted(column)} is null, '{NOTHING}', {error})"
    if column != "value":
        error = f"concat({text_literal(f'{column}: ')}, {error})"
    # A column of its own: the expression is long, and both results need it.
    read = records.withColumn(_ERROR, fn.expr(error))
    there = [name for name in records.schema.names if name not in _OURS]
    made = {"outcome": f"if({_ERROR} is not null, '{REJECT}', '{ACCEPT}')", "error": _ERROR}
    if "error" in there:
        made["error"] = f"coalesce(error, {_ERROR})"
    if "outcome" in there:
        made["outcome"] = f"if(outcome != '{ACCEPT}', outcome, {made['outcome']})"
    columns = {name: quoted(name) for name in there}
    columns |= {name: f"{each} as {name}" for name, each in made.items()}
    columns[column] = f"case when {made['error']} is null then {value} end as {quoted(column)}"
    return select_texts(read, *columns.values())
