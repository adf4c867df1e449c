"""Names and literals in texts of Spark's SQL.

An expression of Column objects is ten or more calls to the JVM for each operator; a text is one call, whatever its
length. A text means the same in every session: a literal with a backslash or a quote, which sessions read in several
ways, or with a `$`, in whose place Spark may put a variable, is written as its bytes.
"""

from __future__ import annotations


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
