"""Do the database and the broker answer, and what does the database say of the service as a whole?"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.database.migrations import pending
from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.errors import ShareError
from sharequeue.groups.service_work import Replicas, read_replicas
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from sharequeue.values import HeldDeadLetters

__all__ = ["Told", "ask_broker", "ask_database", "held_letters"]


@dataclass(frozen=True, slots=True)
class Told:
    """`ok`, or why heartbeats fail; and if ok, what replicas have done, and which dead letters are held."""

    state: str
    replicas: Replicas | None = None
    held: tuple[tuple[HeldDeadLetters, float], ...] = ()


def ask_database(database: Database) -> Told:
    """Ask whether heartbeats can succeed, and how the service is. Waits for as long as the database does."""
    try:
        missing = pending(database)
        if missing:
            return Told(f"the schema is behind by {len(missing)} files: run `sharequeue migrate`")
        return Told("ok", read_replicas(database), tuple(held_letters(database)))
    except SchemaOutdated as error:
        return Told(str(error))
    except SQLAlchemyError as error:
        return Told(f"the database does not answer: {str(error).splitlines()[0]}")


def held_letters(database: Database) -> list[tuple[HeldDeadLetters, float]]:
    """Return the dead letters that cannot be written, each with the seconds for which they have waited."""
    state = State(database)
    held = state.dead_letters.held()
    if not held:
        return []
    now = state.now()
    return [(each, (now - each.since).total_seconds()) for each in held]


def ask_broker(topics: Topics) -> str:
    """Return `ok`, or why the broker does not answer."""
    try:
        topics.cluster_id()
    except ShareError as error:
        return error.message
    return "ok"
