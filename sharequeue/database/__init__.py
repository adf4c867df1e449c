"""How Postgres is reached, and how its schema gets there."""

from sharequeue.database.pool import Database

__all__ = ["Database"]
