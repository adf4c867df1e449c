"""The connection to Postgres, and the migration of its schema."""

from sharequeue.database.pool import Database

__all__ = ["Database"]
