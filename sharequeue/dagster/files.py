"""Replace a small derived table atomically: a reader sees the old one or the new one."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def replace_parquet(frame: "pd.DataFrame", path: Path) -> Path:
    """Write ``frame`` as one Parquet file at ``path``, replacing an existing one; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    frame.to_parquet(staged, index=False)
    staged.replace(path)
    return path
