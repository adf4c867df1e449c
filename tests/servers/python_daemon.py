"""Spark's daemon of Python workers, which has imported once what every worker imports.

Spark puts archives on the path of its workers, such as PySpark itself. Before each task a worker has Python forget
what it knows of the path, and for an archive that is to read its directory again, once for each package of it: 0.3 s
of CPU time a task. Here PySpark comes from the folder in which it is installed.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

for archive in [entry for entry in sys.path if Path(entry).is_file()]:
    sys.path.remove(archive)
    sys.path_importer_cache.pop(archive, None)

import pandas  # noqa: E402, F401
import pyarrow  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

if __name__ == "__main__":
    gc.freeze()  # no worker searches this for garbage
    manager()  # type: ignore[no-untyped-call]
