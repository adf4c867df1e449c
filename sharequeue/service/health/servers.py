"""Check whether the database and the broker respond, and read the state of the service from the database."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.database.migrations import pending
from sharequeue.database.schema_files import SchemaNewer, SchemaOutdated
from sharequeue.database.sqlstates import outage_reason
from sharequeue.domain.errors import ShareError
from sharequeue.domain.settings import SettingMissing
from sharequeue.domain.values import HeldDeadLetters
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from sharequeue.state.replicas import Replicas, read_replicas

__all__ = ["DatabaseProbe", "DatabaseState", "ask_broker", "held_letters"]


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """The state of the database: `ok` or the fault; whether heartbeats can succeed; and if ok, the last work of the
    replicas, and the held dead letters."""

    state: str
    usable: bool = False
    replicas: Replicas | None = None
    held: tuple[tuple[HeldDeadLetters, float], ...] = ()


class DatabaseProbe:
    """A check whether heartbeats can succeed, with the state of the service. It waits as long as the database takes.

    This code works with the schema of the next release: replicas are upgraded one after the other, and the old ones
    go on. With the schema of an earlier release heartbeats could fail.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._met = False
        """Whether the schema was once the one of this code: any difference since then is newer."""

    def __call__(self) -> DatabaseState:
        """Check the database now."""
        try:
            missing = pending(self._database)
            if missing and self._met:
                return DatabaseState(
                    "the schema was changed since this process began: upgrade this replica", usable=True
                )
            if missing:
                return DatabaseState(
                    f"the schema is behind by {len(missing)} files: run `sharequeue migrate`"
                )
            self._met = True
            self._database.require_writable()
            return DatabaseState(
                "ok", True, read_replicas(self._database), tuple(held_letters(self._database))
            )
        except SchemaNewer as error:
            return DatabaseState(str(error), usable=True)
        except SchemaOutdated as error:
            return DatabaseState(str(error))
        except SQLAlchemyError as error:
            return DatabaseState(outage_reason(error))


def held_letters(database: Database) -> list[tuple[HeldDeadLetters, float]]:
    """Return the dead letters that cannot be written, each with its waiting time in seconds."""
    state = State(database)
    held = state.dead_letters.held()
    if not held:
        return []
    now = state.now()
    return [(each, (now - each.since).total_seconds()) for each in held]


def ask_broker(topics: Topics) -> str:
    """Return `ok`, or why the broker does not respond."""
    try:
        topics.cluster_id()
    except ShareError as error:
        return error.message
    except SettingMissing as error:  # a credentials file was removed since the service started
        return str(error)
    return "ok"
