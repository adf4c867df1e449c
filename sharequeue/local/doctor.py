"""Check the machine, the servers, the schema and the clock; each failed check has what to do.

`examine_machine` checks that this machine can run the stack; `up` calls it before it changes anything.
`examine_servers` checks that the configured servers respond, in a supported version, with the expected schema and
time. Every finding other than ok ends with what to do. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import psycopg2
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from sharequeue.database import Database
from sharequeue.database.migrations import OLDEST_POSTGRES, encoding_defect, pending
from sharequeue.database.pool import Joined
from sharequeue.database.refusals import refusal_of
from sharequeue.database.schema_files import SchemaOutdated, schema_mismatch
from sharequeue.database.sqlstates import FORBIDDEN, READ_ONLY, sqlstate
from sharequeue.domain.errors import InconsistentClusterId, ShareError, first_line
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.domain.settings.service_address import unanswered
from sharequeue.kafka.clients import spark_options
from sharequeue.kafka.topics import Topics
from sharequeue.local import jars, ports, processes
from sharequeue.local.home import Home
from sharequeue.local.preflight import (
    DISK_NEEDED_TO_RUN,
    StackError,
    check_disk,
    check_name,
    check_python,
    check_writable,
    find_java,
)
from sharequeue.state import State

__all__ = ["FAILURE", "OK", "WARNING", "DoctorFinding", "examine", "examine_machine", "examine_servers"]

SKEW_SECONDS = 2.0
NOTIFICATIONS_USAGE = 0.5
"""From here on, `wake_consumers` in sql/functions/30_state sends no notification."""
_PACKAGES = ("sharequeue", "dagster", "pyspark", "confluent-kafka", "sqlalchemy", "great-expectations")


OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check: `ok`, `warning` or `failure`, what was seen, and what to do."""

    subject: str
    level: str
    seen: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """The finding as text."""
        return f"{self.seen}: {self.remedy}" if self.remedy else self.seen


def examine(settings: Settings) -> list[DoctorFinding]:
    """Check everything, the machine first."""
    return [*examine_machine(settings), *examine_servers(settings)]


def examine_machine(settings: Settings, environment: Mapping[str, str] | None = None) -> list[DoctorFinding]:
    """Check Python, Java, the data folder, the disk and the ports. Changes nothing; fast enough for every `up`."""
    home = Home.at(settings.home)

    def java() -> str:
        found = find_java(environment)
        return f"{found.version} at {found.home}"

    def disk() -> str:
        return f"{check_disk(home.path, DISK_NEEDED_TO_RUN) / 1024**3:.1f} GB free"

    def folder() -> str:
        check_name(home.path)
        check_writable(home.path)
        return str(home.path)

    checks: list[tuple[str, Callable[[], str]]] = [
        ("Python", check_python),
        ("Java", java),
        ("data folder", folder),
        ("disk", disk),
    ]
    return [_finding(subject, check) for subject, check in checks] + _ports(home)


def _finding(subject: str, check: Callable[[], str]) -> DoctorFinding:
    """Turn a preflight check, whose error already has what to do, into a finding."""
    try:
        return DoctorFinding(subject, OK, check())
    except StackError as error:
        return DoctorFinding(subject, FAILURE, str(error))


def _ports(home: Home) -> list[DoctorFinding]:
    """Find our ports that another program uses: a warning, because the next start takes another port."""
    findings = []
    for name, port in ports.recorded(home).items():
        component = "kafka" if name == "kafka-controller" else name
        if processes.find(home, component) is None and not ports.is_free(port):
            seen = f"port {port} of {name} is in use by another program"
            findings.append(
                DoctorFinding("ports", WARNING, seen, "stop it, or let the next `up` take another port")
            )
    return findings or [DoctorFinding("ports", OK, "free, or held by our own servers")]


def examine_servers(settings: Settings) -> list[DoctorFinding]:
    """Check the configured jars, database, schema, clock, broker, service and versions."""
    with ExitStack() as stack:
        database: Database | None = None
        try:
            database = stack.enter_context(Database.open(settings))
            found = _database(database)
        except SettingMissing as error:
            found = [DoctorFinding("database", FAILURE, str(error))]
        if found[0].level == FAILURE:
            database = None  # it would be waited for once more
        return [
            _jars(settings),
            *found,
            _broker(settings, database),
            _service(settings),
            DoctorFinding("packages", OK, ", ".join(_versions())),
        ]


def _jars(settings: Settings) -> DoctorFinding:
    try:
        problems = [each for wanted in jars.stack_sets() for each in jars.defects(settings.jars, wanted)]
    except StackError as error:
        return DoctorFinding("jars", FAILURE, str(error))
    except OSError as error:
        problems = [str(error)]
    if not problems:
        return DoctorFinding("jars", OK, f"complete, in {settings.jars}")
    seen = f"{len(problems)} of them are missing or wrong in {settings.jars} (first: {problems[0]})"
    return DoctorFinding("jars", FAILURE, seen, "run `sharequeue up`, which fetches them")


def _database(database: Database) -> list[DoctorFinding]:
    try:
        with database.transaction() as connection:
            before = datetime.now(UTC)
            server, encoding, database_time = connection.execute(
                sa.text(
                    "select cast(current_setting('server_version_num') as int), current_setting('server_encoding'),"
                    " clock_timestamp()"
                )
            ).one()
            after = datetime.now(UTC)
        where = database.engine.url.render_as_string(hide_password=True)
        if defect := encoding_defect(encoding):
            return [DoctorFinding("database", FAILURE, f"the one at {where} cannot be used", defect)]
        schema = _schema(database)
        found = [
            _postgres(database, server, where),
            *_notifications(database),
            *_collation(database),
            _clock(database_time, before, after),
            schema,
        ]
        if schema.level == OK:
            found += _copied(database)
        return [*found, _login(database), _identity(database)] if schema.level == OK else found
    except SQLAlchemyError as error:
        reason = first_line(getattr(error, "orig", None) or error)
        if refusal := refusal_of(error):
            return [DoctorFinding("database", FAILURE, f"{refusal.what} ({reason})", refusal.remedy)]
        if sqlstate(error) is not None:
            remedy = "give the login a role of the database (`sharequeue migrate --roles` makes them)"
            return [DoctorFinding("database", FAILURE, f"refuses a statement ({reason})", remedy)]
        if _takes_single_statements(database):
            seen = "ends each transaction: a pooler in statement mode is between"
            return [
                DoctorFinding(
                    "database", FAILURE, seen, "set pool_mode = transaction (or session) in the pooler"
                )
            ]
        remedy = "run `sharequeue up`, or set SHAREQUEUE_DATABASE_URL to a running server"
        return [DoctorFinding("database", FAILURE, f"does not answer ({reason})", remedy)]


def _takes_single_statements(database: Database) -> bool:
    """Return whether a statement works outside a transaction."""
    try:
        arguments, route = database.engine.dialect.create_connect_args(database.engine.url)
        with closing(psycopg2.connect(*arguments, **route)) as connection:
            connection.autocommit = True
            connection.cursor().execute("select 1")
    except psycopg2.Error:
        return False
    return True


def _postgres(database: Database, number: int, where: str) -> DoctorFinding:
    """Check the version, and that the database can be written."""
    major = number // 10000
    if major < OLDEST_POSTGRES:
        return DoctorFinding(
            "database",
            FAILURE,
            f"PostgreSQL {major} at {where}",
            f"use PostgreSQL {OLDEST_POSTGRES} or later",
        )
    try:
        database.require_writable()
    except OperationalError as error:
        if sqlstate(error) != READ_ONLY:
            raise
        remedy = (
            "make it writable (it is a standby, or default_transaction_read_only is on, as on a managed server whose "
            "disk is full), or set SHAREQUEUE_DATABASE_URL to the primary server"
        )
        return DoctorFinding("database", FAILURE, f"PostgreSQL {major} at {where} is read-only", remedy)
    return DoctorFinding("database", OK, f"PostgreSQL {major}.{number % 10000} at {where}")


def _notifications(database: Database) -> list[DoctorFinding]:
    """Find that the server's queue of notifications is half full: the state then sends none."""
    usage = database.rows(sa.text("select pg_notification_queue_usage() as usage"))[0]["usage"]
    if usage < NOTIFICATIONS_USAGE:
        return []
    seen = f"the server's queue of notifications is {100 * usage:.0f} % full, so waiting consumers get none and poll"
    remedy = (
        "end the session that listens and does not read: idle in a transaction, or in ClientWrite, with the oldest "
        "xact_start in pg_stat_activity"
    )
    return [DoctorFinding("notifications", WARNING, seen, remedy)]


def _collation(database: Database) -> list[DoctorFinding]:
    """Find that the order of texts changed below the indexes: another operating system, or a newer one."""
    found = database.rows(
        sa.text(
            "select quote_ident(datname) as name, datcollversion as made,"
            " pg_database_collation_actual_version(oid) as now from pg_database where datname = current_database()"
        )
    )[0]
    return _collation_finding(found["name"], found["made"], found["now"])


def _collation_finding(name: str, made: str | None, now: str | None) -> list[DoctorFinding]:
    """Return the finding of a database whose collation had a version and has another one; a C locale has none."""
    if made is None or now is None or made == now:
        return []
    seen = (
        f"{name} was made with version {made} of its collation, which is {now} now: an index may miss a text"
    )
    remedy = f"stop all work; `reindex database {name}; alter database {name} refresh collation version`"
    return [DoctorFinding("collation", WARNING, seen, remedy)]


def _clock(database_time: datetime, before: datetime, after: datetime) -> DoctorFinding:
    """Check that this machine's clock agrees with the database's.

    The database's clock decides about locks; this machine's clock is only used in reports and logs.
    """
    skew = max((before - database_time).total_seconds(), (database_time - after).total_seconds(), 0.0)
    if skew > SKEW_SECONDS:
        seen = f"the clocks of this machine and the database differ by {skew:.1f} s"
        return DoctorFinding(
            "clock", WARNING, seen, "synchronise both with NTP; locks use the database's clock, logs do not"
        )
    return DoctorFinding("clock", OK, f"within {max(skew, 0.1):.1f} s of the database's")


def _schema(database: Database) -> DoctorFinding:
    try:
        todo = pending(database)
    except SchemaOutdated as error:
        return DoctorFinding("schema", FAILURE, str(error))
    except ProgrammingError:
        # A worker or reader may not read the list of files, only the version.
        with database.engine.connect() as connection:
            mismatch = schema_mismatch(connection)
        return (
            DoctorFinding("schema", FAILURE, mismatch)
            if mismatch
            else DoctorFinding("schema", OK, "up to date")
        )
    if todo:
        return DoctorFinding(
            "schema", FAILURE, f"{len(todo)} files are pending (first: {todo[0]})", "run `sharequeue migrate`"
        )
    return DoctorFinding("schema", OK, "up to date")


def _copied(database: Database) -> list[DoctorFinding]:
    """Find what logical replication does not copy: values of sequences, and later partitions of the journal."""
    findings = []
    publications = [
        row["name"]
        for row in database.rows(
            sa.text(
                "select p.pubname as name from pg_publication p where not p.pubviaroot and exists (select"
                " from pg_publication_tables t where t.pubname = p.pubname and t.schemaname = 'sharequeue'"
                " and t.tablename = 'journal_other') order by 1"
            )
        )
    ]
    if publications:
        seen = f"{', '.join(publications)} publishes the journal's partitions one by one"
        remedy = "alter publication … set (publish_via_partition_root = true): a subscriber stops at a new partition"
        findings.append(DoctorFinding("publication", WARNING, seen, remedy))
    try:
        behind = State(database).figures.sequences_behind()
    except ProgrammingError as error:
        if sqlstate(error) != FORBIDDEN:  # a worker may not ask
            raise
        behind = []
    if behind:
        seen = f"{', '.join(behind)}: the next value is used already, as after a copy of the rows only"
        findings.append(
            DoctorFinding(
                "sequences", FAILURE, seen, "run `sharequeue state raise-epochs --execute`, which sets them"
            )
        )
    return findings


def _login(database: Database) -> DoctorFinding:
    """Check that the logged-in role is the caller's own: ACLs apply to that role.

    A pool with a forced user logs in under another name than the address has; only this check shows it. Some
    managed servers have a name of their own behind the user's: `me.project`, `me@server`.
    """
    asked = database.engine.url.username
    found = database.rows(
        sa.text(
            "select cast(session_user as text) as login, sharequeue.principal() as principal,"
            " pg_has_role(session_user, (select nspowner from pg_namespace where nspname = 'sharequeue'), 'MEMBER')"
            " as owner"
        )
    )[0]
    login = found["login"]
    if asked is not None and asked != login and not asked.startswith((f"{login}.", f"{login}@")):
        return DoctorFinding(
            "login",
            FAILURE,
            f"the address has the user {asked}, but Postgres sees {login}: the pool forces one user, so "
            "that ACLs and the audit log cannot tell callers apart",
            "let the pool log in as each caller (PgBouncer: no user= for the database, auth_file or auth_query)",
        )
    what = "the schema's owner, to whom no ACL applies" if found["owner"] else "ACLs apply"
    return DoctorFinding("login", OK, f"{found['principal']}, {what}")


def _identity(database: Database) -> DoctorFinding:
    """Check that the database is not a copy of that of the state."""
    place = State(database).administration.place()
    if not place.is_copy:
        return DoctorFinding("identity", OK, f"the state is that of {place.here}")
    return DoctorFinding(
        "identity",
        FAILURE,
        f"this is {place.here}, a copy: its state is that of {place.bound_to}, since {place.bound_at}",
        "nothing is written or begun here. Correct SHAREQUEUE_DATABASE_URL; or, if this database is to replace the "
        "other one, stop everything that uses the other one and run `sharequeue adopt`",
    )


def _broker(settings: Settings, database: Database | None) -> DoctorFinding:
    remedy = "if you have no broker, run `sharequeue up`"
    try:
        with Topics(settings, timeout=5) as topics:
            cluster_id, brokers = topics.cluster()
        # The settings for Spark's client: it supports fewer than the other one.
        spark_options(settings)
    except SettingMissing as error:
        return DoctorFinding("broker", FAILURE, str(error))
    except ShareError as error:
        return DoctorFinding("broker", FAILURE, error.message.rstrip("."), remedy)
    if database is not None and (wrong := _other_cluster(database, cluster_id)):
        return DoctorFinding("broker", FAILURE, wrong)
    return DoctorFinding("broker", OK, f"{brokers} at {settings.bootstrap_servers}, cluster {cluster_id}")


def _other_cluster(database: Database, cluster_id: str) -> str | None:
    """Return why the state does not belong to this Kafka cluster. None if it does, and if the state cannot be asked,
    or is a copy: the findings on the database tell that.
    """
    try:
        with database.transaction() as connection:
            administration = State(Joined(connection)).administration
            if not administration.place().is_copy:
                administration.check_cluster(cluster_id)
            connection.rollback()  # The first check binds the state.
    except InconsistentClusterId as error:
        return error.message
    except (ShareError, SchemaOutdated, SQLAlchemyError):
        return None
    return None


def _service(settings: Settings) -> DoctorFinding:
    # Imported here: the import takes a fifth of the start time of any command.
    import httpx

    remedy = "run `sharequeue up`, or start `sharequeue serve` and set SHAREQUEUE_SERVICE_URL"
    try:
        where = settings.service_url
        with settings.service.client(5) as client:
            response = client.get("/health")
    except SettingMissing as error:
        return DoctorFinding("service", FAILURE, str(error))
    except httpx.HTTPError as error:
        if reason := unanswered(where, error):
            return DoctorFinding("service", FAILURE, reason)
        return DoctorFinding("service", FAILURE, f"{where} does not answer ({error})", remedy)
    if not response.is_success:
        return DoctorFinding(
            "service", FAILURE, f"{where}/health returns status {response.status_code}", remedy
        )
    return DoctorFinding("service", OK, f"healthy at {where}")


def _versions() -> list[str]:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} missing")
    return found
