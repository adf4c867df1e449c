"""Is everything as it must be, and if not, what is to be done?

Two questions: can this machine run the stack (`examine_machine`, asked by `up` before it changes anything),
and do the servers the settings point to answer, in a version we work with, with the schema and the time we
expect (`examine_servers`). Every finding that is not fine ends with what to do. Nothing is changed here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

from sharequeue.database import Database
from sharequeue.database.migrations import OLDEST_POSTGRES, pending
from sharequeue.database.schema_files import SchemaOutdated, schema_mismatch
from sharequeue.errors import ShareError
from sharequeue.kafka.clients import spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.local import jars
from sharequeue.local.machine import FAILURE, OK, WARNING, Finding, examine_machine
from sharequeue.settings import SettingMissing, Settings

__all__ = ["FAILURE", "OK", "WARNING", "Finding", "examine", "examine_machine", "examine_servers"]

SKEW_SECONDS = 2.0
_PACKAGES = ("sharequeue", "dagster", "pyspark", "confluent-kafka", "sqlalchemy", "great-expectations")


def examine(settings: Settings) -> list[Finding]:
    """Look at everything, the machine first."""
    return [*examine_machine(settings), *examine_servers(settings)]


def examine_servers(settings: Settings) -> list[Finding]:
    """Look at jars, database, schema, clock, broker, service and versions, as the settings name them."""
    return [
        _jars(settings),
        *_database(settings),
        _broker(settings),
        _service(settings),
        Finding("packages", OK, ", ".join(_versions())),
    ]


def _jars(settings: Settings) -> Finding:
    try:
        problems = jars.defects(settings.jars)
    except OSError as error:
        problems = [str(error)]
    if not problems:
        return Finding("jars", OK, f"whole, in {settings.jars}")
    seen = f"{len(problems)} of them are not right in {settings.jars} (first: {problems[0]})"
    return Finding("jars", FAILURE, seen, "run `sharequeue up`, which fetches them")


def _database(settings: Settings) -> list[Finding]:
    try:
        database = Database.open(settings)
    except SettingMissing as error:
        return [Finding("database", FAILURE, str(error))]
    try:
        with database.transaction() as connection:
            before = datetime.now(UTC)
            server, theirs = connection.execute(
                sa.text("select cast(current_setting('server_version_num') as int), clock_timestamp()")
            ).one()
            after = datetime.now(UTC)
        where = database.engine.url.render_as_string(hide_password=True)
        schema = _schema(database)
        found = [_postgres_version(server, where), _clock(theirs, before, after), schema]
        return [*found, _login(database)] if schema.level == OK else found
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        remedy = "run `sharequeue up`, or set SHAREQUEUE_DATABASE_URL to a server that runs"
        return [Finding("database", FAILURE, f"does not answer ({reason})", remedy)]
    finally:
        database.close()


def _postgres_version(number: int, where: str) -> Finding:
    major = number // 10000
    if major < OLDEST_POSTGRES:
        return Finding(
            "database",
            FAILURE,
            f"PostgreSQL {major} at {where}",
            f"use PostgreSQL {OLDEST_POSTGRES} or later",
        )
    return Finding("database", OK, f"PostgreSQL {major}.{number % 10000} at {where}")


def _clock(theirs: datetime, before: datetime, after: datetime) -> Finding:
    """The database's clock decides over locks; ours only stamps reports and logs."""
    skew = max((before - theirs).total_seconds(), (theirs - after).total_seconds(), 0.0)
    if skew > SKEW_SECONDS:
        seen = f"this machine and the database differ by {skew:.1f} s"
        return Finding(
            "clock", WARNING, seen, "set both by NTP; locks follow the database, only times in logs are off"
        )
    return Finding("clock", OK, f"within {max(skew, 0.1):.1f} s of the database's")


def _schema(database: Database) -> Finding:
    try:
        todo = pending(database)
    except SchemaOutdated as error:
        return Finding("schema", FAILURE, str(error))
    except ProgrammingError:
        # A worker or a reader, who may not look at the list of files, only ask for the version.
        with database.engine.connect() as connection:
            mismatch = schema_mismatch(connection)
        return Finding("schema", FAILURE, mismatch) if mismatch else Finding("schema", OK, "up to date")
    if todo:
        return Finding(
            "schema", FAILURE, f"{len(todo)} files wait (first: {todo[0]})", "run `sharequeue migrate`"
        )
    return Finding("schema", OK, "up to date")


def _login(database: Database) -> Finding:
    """ACLs see the role that is logged in: it must be the caller's own.

    A pool that forces one user on all logs in as somebody else than the user in the address; nothing else shows it.
    """
    asked = database.engine.url.username
    found = database.rows(
        sa.text(
            "select cast(session_user as text) as login, sharequeue.principal() as principal,"
            " pg_has_role(session_user, (select nspowner from pg_namespace where nspname = 'sharequeue'), 'MEMBER')"
            " as owner"
        )
    )[0]
    if asked is not None and asked != found["login"]:
        return Finding(
            "login",
            FAILURE,
            f"the address names {asked}, Postgres sees {found['login']}: a pool forces one user on all, and to ACLs "
            "and the audit trail everybody is the same",
            "let the pool log in as each caller (PgBouncer: no user= for the database, auth_file or auth_query)",
        )
    what = "the schema's owner, whom no ACL binds" if found["owner"] else "bound by ACLs"
    return Finding("login", OK, f"{found['principal']}, {what}")


def _broker(settings: Settings) -> Finding:
    remedy = "without a broker, run `sharequeue up`"
    try:
        with Topics(settings, timeout=5) as topics:
            cluster_id, brokers = topics.cluster()
        # What Spark's client would be given: it takes less than the other one.
        spark_options(settings)
    except SettingMissing as error:
        return Finding("broker", FAILURE, str(error))
    except ShareError as error:
        return Finding("broker", FAILURE, error.message.rstrip("."), remedy)
    return Finding("broker", OK, f"{brokers} at {settings.bootstrap_servers}, cluster {cluster_id}")


def _service(settings: Settings) -> Finding:
    # Imported here: a fifth of the time that any command needs to begin.
    import httpx

    remedy = "run `sharequeue up`, or start `sharequeue serve` and set SHAREQUEUE_SERVICE_URL"
    try:
        where = settings.service_url
        with settings.service.client(5) as client:
            response = client.get("/health")
    except SettingMissing as error:
        return Finding("service", FAILURE, str(error))
    except httpx.HTTPError as error:
        return Finding("service", FAILURE, f"{where} does not answer ({error})", remedy)
    if not response.is_success:
        return Finding("service", FAILURE, f"{where}/health returns status {response.status_code}", remedy)
    return Finding("service", OK, f"healthy at {where}")


def _versions() -> list[str]:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} missing")
    return found
