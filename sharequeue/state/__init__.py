"""Share-partition state in Postgres: `State` and its parts, the journal, and the listener for notifications."""

from sharequeue.state.state import State

__all__ = ["State"]
