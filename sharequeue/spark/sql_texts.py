"""Names, literals and lists of columns in texts of Spark's SQL.

An expression of Column objects is ten or more calls to the JVM for each operator; a text is one call, whatever its
length. A text means the same in every session: a literal with a backslash or a quote, which sessions read in several
ways, or with a `$`, in whose place Spark may put a variable, is written as its bytes.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame

_BETWEEN = "\x1f\x1e\x1f"
"""Separates expressions; no name or text of a query has it."""
_splitters: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
"""A pattern of Java that splits at this, by JVM."""


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """Return the SQL literal of a text."""
    if any(each in text for each in "'\\$"):
        return f"cast({bytes_literal(text.encode())} as string)"
    return f"'{text}'"


def bytes_literal(content: bytes) -> str:
    """Return the SQL literal of bytes."""
    return f"X'{content.hex()}'"


def select_texts(records: DataFrame, *expressions: str) -> DataFrame:
    """Return what `selectExpr` returns, with two calls to the JVM in place of one for each expression."""
    jvm: Any = records.sparkSession._jvm
    if (splitter := _splitters.get(jvm)) is None:
        splitter = _splitters[jvm] = jvm.java.util.regex.Pattern.compile(_BETWEEN)
    selected = records._jdf.selectExpr(splitter.split(_BETWEEN.join(expressions)))
    return DataFrame(selected, records.sparkSession)
