"""Spark's daemon of Python workers, which has imported once what every worker imports."""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
