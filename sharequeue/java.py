"""Which Java runs Spark's JVM?

One function decides it for the JVM and for its class-data archive. Whether that Java is one that Spark works on is
`local/preflight.py`'s question, asked at set-up.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

__all__ = ["java_program"]


def java_program(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the `java` program, as Spark's scripts look for it: `JAVA_HOME`, then PATH. None when there is none."""
    home = environment.get("JAVA_HOME")
    if home:
        return Path(home) / "bin" / "java"
    found = shutil.which("java", path=environment.get("PATH"))
    return Path(found) if found else None
