"""Share-partition state in Postgres: `State` and its parts, the journal, the reports."""

from sharequeue.state.state import State

__all__ = ["State"]
