"""Spark's daemon of Python workers, which has imported once what every worker imports."""

from __future__ import annotations

import gc

import pandas  # noqa: F401
import pyarrow  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    gc.freeze()  # no worker searches this for garbage
    manager()  # type: ignore[no-untyped-call]
