"""Secrets are where they were put, and nowhere else: each has a mark, and every output is searched for it."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from confluent_kafka import Producer

from sharequeue import ShareConsumer
from sharequeue.cli import command
from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.database import Database
from sharequeue.domain.errors import CoordinatorNotAvailable
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.membership import Membership
from sharequeue.groups.tokens import Tokens
from sharequeue.groups.transports import ServiceTransport
from sharequeue.kafka.topics import Topics
from sharequeue.local import ports
from sharequeue.service import create_app
from tests.fixtures.dagster import share_group
from tests.fixtures.stack import REPOSITORY, MakeTopic
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

MARK = "never-to-be-seen"
KAFKA = {
    "SASL_USERNAME": "jobs",
    "SASL_PASSWORD": f"{MARK}-kafka",
    "SSL_KEY_PASSWORD": f"{MARK}-key",
    "SSL_KEYSTORE_PASSWORD": f"{MARK}-keystore",
    "SASL_OAUTHBEARER_CLIENT_SECRET": f"{MARK}-oauth",
}
REGISTRY = {
    "URL": "http://127.0.0.1:9",
    "BASIC_AUTH_USER_INFO": f"jobs:{MARK}-registry",
    "BEARER_AUTH_TOKEN": f"{MARK}-bearer",
}


@dataclass
class Marked:
    """The settings with marked secrets, and all that was seen."""

    settings: Settings
    token: str = field(repr=False)
    seen: dict[str, str] = field(default_factory=dict, repr=False)

    def look(self, where: str, what: object) -> None:
        """Search something, and keep where."""
        text = what if isinstance(what, str) else repr(what)
        self.seen[where] = text
        for secret in (MARK, self.token):
            assert secret not in text, (
                f"{where}: {text[max(0, text.index(secret) - 300) : text.index(secret) + 60]}"
            )


def command_lines() -> str:
    """What every process of this machine was started with."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(each.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(found)


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Look at the command lines ten times a second; give those with a secret in them."""
    stop, found = threading.Event(), [""]

    def look() -> None:
        while not stop.wait(0.1):
            found.extend(line for line in command_lines().splitlines() if MARK in line or "sq_" in line)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def marked(
    settings: Settings, private_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Marked]:
    """Give an environment whose every secret has a mark; a login of Postgres with such a password among them."""
    role, password = f"marked_{os.getpid()}", f"{MARK}-database"
    with private_database.transaction() as connection:
        connection.exec_driver_sql(f"drop role if exists {role}")
        connection.exec_driver_sql(f"create role {role} login superuser password '{password}'")
    _, token = Tokens(private_database).create("User:marked")
    url = private_database.engine.url.set(username=role, password=password)
    for name in [name for name in os.environ if name.startswith("SHAREQUEUE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    monkeypatch.setenv("SHAREQUEUE_JARS", str(settings.jars))
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url.render_as_string(hide_password=False))
    monkeypatch.setenv("SHAREQUEUE_BOOTSTRAP_SERVERS", settings.bootstrap_servers)
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("SHAREQUEUE_SERVICE_TOKEN", token)
    for prefix, some in (("KAFKA", KAFKA), ("REGISTRY", REGISTRY)):
        for name, value in some.items():
            monkeypatch.setenv(f"SHAREQUEUE_{prefix}_{name}", value)
    yield Marked(Settings.load(), token)
    with private_database.transaction() as connection:
        connection.exec_driver_sql(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = %(role)s", {"role": role}
        )
        connection.exec_driver_sql(f"drop role {role}")


@contextlib.contextmanager
def serving(marked: Marked, log: Path) -> Iterator[str]:
    """Have `sharequeue serve` run in that environment."""
    port = next(port for port in range(20_100, 20_900) if ports.is_free(port))
    with log.open("wb") as file:
        words = [sys.executable, "-m", "sharequeue.cli", "serve", "--port", str(port), "--require-token"]
        process = subprocess.Popen(
            words, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
        )
    try:
        wait_until(lambda: ports.accepts(port) or process.poll() is not None, 60)
        assert process.poll() is None, log.read_text()
        assert f"serve --port {port}" in command_lines()  # or the search would find nothing anywhere
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        marked.look("the log of the service", log.read_text())


def test_no_repr_and_no_error_has_a_secret(marked: Marked) -> None:
    """No repr and no error has a secret: of settings, addresses, clients, the database, the application."""
    settings = marked.settings
    with contextlib.ExitStack() as opened:
        database = opened.enter_context(Database.open(settings))
        topics = opened.enter_context(Topics(settings))
        beats = ServiceTransport(settings.replace(service_url="http://127.0.0.1:9").service)
        opened.callback(beats.close)
        app = create_app(settings, coordinate=False)
        opened.callback(app.state.service.close)
        member = Membership(settings.replace(service_url="http://127.0.0.1:9").service, "g", ["t"])
        consumer = opened.enter_context(ShareConsumer({"group.id": "g", "sasl.password": f"{MARK}-consumer"}))
        objects = [
            settings,
            settings.replace(home=settings.home.parent),
            settings.kafka,
            settings.registry,
            database,
            database.engine,
            database.engine.url,
            topics,
            beats,
        ]
        objects += [app, app.state.service, member, consumer, Tokens(database), Tokens(database).find()]
        objects += [settings.replace(service_url="http://127.0.0.1:9").service, copy.copy(settings)]
        for each in objects:
            marked.look(f"repr of {type(each).__name__}", repr(each))
            marked.look(f"str of {type(each).__name__}", str(each))
        with pytest.raises(CoordinatorNotAvailable) as raised:
            member.join(0.1)
        marked.look("an error of a member", "".join(traceback.format_exception(raised.value)))
        closed = database.engine.url.set(port=9)
        with pytest.raises(sa.exc.OperationalError) as unreachable:
            Database(closed.render_as_string(hide_password=False)).rows(sa.text("select 1"))
        marked.look("an error of the database", "".join(traceback.format_exception(unreachable.value)))


def test_no_output_of_commands_and_service_has_a_secret(
    marked: Marked, tmp_path: Path, caplog: pytest.LogCaptureFixture, private_database: Database
) -> None:
    """Commands that work, and that find no database, no broker and no service; the service's log and answers; the
    command lines of all processes meanwhile."""
    caplog.set_level("DEBUG")
    alter_group_configs(private_database, "g", {})
    commands = [
        ["doctor"],
        ["groups", "list"],
        ["groups", "describe", "--group", "g"],
        ["tokens", "list"],
        ["tokens", "list", "-o", "json"],
        ["audit"],
        ["configs", "describe", "--group", "g"],
        ["offsets", "reset", "--group", "g", "--topic", "nothing", "--to-latest"],
        ["verify"],
        ["groups", "describe", "--members", "--group", "g"],
    ]
    ways = [
        [],
        ["--database-url", "postgresql://somebody@127.0.0.1:9/nothing"],
        ["--bootstrap-server", "127.0.0.1:9"],
    ]
    for words in commands:
        for way in ways:
            done = CliRunner().invoke(command, [*words, *way])
            errors = "".join(traceback.format_exception(done.exception)) if done.exception else ""
            marked.look(f"{words} {way}", done.output + errors)
    with watched() as found, serving(marked, tmp_path / "log") as url:
        who = {"Authorization": f"Bearer {marked.token}"}
        beat = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
        with httpx.Client(base_url=url, trust_env=False, timeout=20, headers=who) as client:
            for path in (
                "/ready",
                "/metrics",
                "/v1/groups",
                "/v1/groups/g",
                "/v1/reports/g",
                "/",
                "/groups/g",
                "/openapi.json",
            ):
                marked.look(path, client.get(path).text)
            for body in (beat, {"group_id": marked.token}, {"Authorization": 1}):
                marked.look(
                    "a heartbeat",
                    client.post("/v1/share-group-heartbeat", json=body).text.replace(marked.token, ""),
                )
            wrong = {"Authorization": f"Bearer {marked.token}x"}
            marked.look("a wrong token", client.get("/v1/groups", headers=wrong).text)
        marked.look("ready, to nobody", httpx.get(f"{url}/ready", trust_env=False).text)
    marked.look("command lines", "\n".join(found))
    marked.look("the log of the commands", caplog.text)
    rows = private_database.rows(sa.text("select to_jsonb(a) as row from sharequeue.audit_log a"))
    marked.look("the audit log", json.dumps([row["row"] for row in rows], default=str))


def test_no_record_of_a_job_or_dagster_has_a_secret(
    marked: Marked,
    make_topic: MakeTopic,
    tmp_path: Path,
    group: str,
    private_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A job of the command, with a JVM of its own, and a run of Dagster's: its config, tags and events; what they
    print, what they write, and the command lines of all processes meanwhile."""
    topic = make_topic(1)
    alter_group_configs(private_database, group, {"share.auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": marked.settings.bootstrap_servers})
    for at in range(5):
        producer.produce(topic, json.dumps(at), partition=0)
    assert producer.flush(30) == 0
    (tmp_path / "marked_job.py").write_text(
        "from sharequeue.spark import pipeline\nfrom tests.fixtures.pipelines import all_accepted\n\n"
        f"orders = pipeline(group={group!r}, topics={[topic]!r})"
        "(all_accepted)\n"
    )
    # Without a security protocol Spark takes it for a mistake.
    monkeypatch.delenv("SHAREQUEUE_KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET")
    with watched() as found, serving(marked, tmp_path / "log") as url:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(tmp_path)]),
            "SHAREQUEUE_SERVICE_URL": url,
        }
        words = [sys.executable, "-m", "sharequeue.cli", "run", "marked_job:orders"]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
        marked.look("a run of the command", done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr
        for at in range(5):
            producer.produce(topic, json.dumps(at), partition=0)
        assert producer.flush(30) == 0
        with pytest.MonkeyPatch.context() as patched, dg.DagsterInstance.ephemeral() as instance:
            patched.setenv("SHAREQUEUE_SERVICE_URL", url)
            queue = share_group(
                group,
                topics=[topic],
                pipeline="tests.fixtures.pipelines:all_accepted",
                configs={"share.auto.offset.reset": "earliest"},
            )
            defs = dg.Definitions.merge(share_group_defs(queue), share_group_resources())
            ran = defs.resolve_job_def(queue.name).execute_in_process(instance=instance, raise_on_error=False)
            run = instance.get_run_by_id(ran.run_id)
            assert run is not None
            marked.look("a run's config", json.dumps(run.run_config, default=str))
            marked.look("a run's tags", json.dumps(dict(run.tags)))
            marked.look("a run", repr(run))
            events = instance.all_logs(ran.run_id)
            assert len(events) > 10
            marked.look("a run's events", "\n".join(f"{each.user_message} {each!r}" for each in events))
            marked.look("the resources", repr(share_group_resources().resources))
            assert ran.success, [each.message for each in ran.all_events if each.is_failure]
    marked.look("command lines", "\n".join(found))
    marked.look("what was printed", "".join(capfd.readouterr()))
    for file in (tmp_path / "output").rglob("*"):
        if file.is_file():
            marked.look(str(file), file.read_bytes().decode(errors="replace"))
