"""Do the database and the broker answer, and what does the database say of the service as a whole?"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.database.migrations import pending
from sharequeue.database.schema_files import SchemaNewer, SchemaOutdated
from sharequeue.errors import ShareError
from sharequeue.groups.replicas import Replicas, read_replicas
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from sharequeue.values import HeldDeadLetters

__all__ = ["DatabaseProbe", "Told", "ask_broker", "held_letters"]


@dataclass(frozen=True, slots=True)
class Told:
    """`ok`, or what is wrong; whether heartbeats can succeed; and if ok, what replicas have done, and which dead
    letters are held."""

    state: str
    usable: bool = False
    replicas: Replicas | None = None
    held: tuple[tuple[HeldDeadLetters, float], ...] = ()


class DatabaseProbe:
    """Asks whether heartbeats can succeed, and how the service is. Waits for as long as the database does.

    A schema of the next release serves this one: while replicas are upgraded one after the other, the old ones go on.
    With one of an earlier release heartbeats could fail.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._met = False
        """Whether the schema was once the one that this code is for: what differs since then is newer."""

    def __call__(self) -> Told:
        """Ask now."""
        try:
            missing = pending(self._database)
            if missing and self._met:
                return Told(
                    "the schema was changed since this process began: upgrade this replica", usable=True
                )
            if missing:
                return Told(f"the schema is behind by {len(missing)} files: run `sharequeue migrate`")
            self._met = True
            return Told("ok", True, read_replicas(self._database), tuple(held_letters(self._database)))
        except SchemaNewer as error:
            return Told(str(error), usable=True)
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
