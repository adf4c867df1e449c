"""What does Dagster load? Everything under ``defs/``, found by folder; nothing is added here."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """The code location ``sharequeue``."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
