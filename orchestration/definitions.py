"""The Dagster code location: everything under ``defs/``, found by folder, and nothing else."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    """Load the code location ``sharequeue``."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
