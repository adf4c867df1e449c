"""Where the rows of a merged summary are: one file for each summary of a queue in Dagster."""

from __future__ import annotations

from sharequeue.domain.names import folder_name

__all__ = ["summary_file"]


def summary_file(root: str, output: str, summary: str) -> str:
    """Return the file of a summary below the root of the outputs; `output` is the name of the queue's output."""
    return f"{root.rstrip('/')}/{folder_name(output)}/{summary}.parquet"
