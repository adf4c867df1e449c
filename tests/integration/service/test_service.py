"""The service over HTTP, in process and as a server, and the members that talk to it."""

from __future__ import annotations

import gzip
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from click.testing import CliRunner
from sqlalchemy import text

from sharequeue import __version__
from sharequeue.cli import command
from sharequeue.database import Database, schema_files
from sharequeue.database.lock_timeouts import LOCK_TIMEOUT_MS
from sharequeue.database.schema_files import Migration
from sharequeue.domain.errors import CoordinatorNotAvailable, InvalidRequest
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups import heartbeats
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.groups.membership import Membership
from sharequeue.groups.tokens import Tokens
from sharequeue.service import create_app
from sharequeue.service.admission import POOL_SIZE
from sharequeue.service.logs import OneLine
from sharequeue.state import State
from tests.integration.service.openapi import conforming
from tests.servers.ports import free_port
from tests.waiting import PATIENCE_S, wait_for_locks, wait_until

MakeTopic = Callable[..., str]
PATH = "/v1/share-group-heartbeat"


@pytest.fixture
def here(settings: Settings, private_database: Database) -> Settings:
    """Give settings that lead to a database of this test alone."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    return settings.replace(database_url=url)


@contextmanager
def serving(settings: Settings, port: int = 0, **options: Any) -> Iterator[str]:
    """Run the service as a real server in a thread, with options of `create_app`; return its URL."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()  # so that a request that comes before the server waits for it
        server = uvicorn.Server(
            uvicorn.Config(create_app(settings, **options), log_config=None, timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


@pytest.fixture
def client(here: Settings) -> Iterator[httpx.Client]:
    """Give a client of the service, which runs in a thread of this process, coordinator included."""
    hooks: dict[str, list[Callable[..., Any]]] = {"response": [conforming]}
    with (
        serving(here) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S, event_hooks=hooks) as client,
    ):
        yield client


def test_heartbeats_go_on_while_everything_else_waits(here: Settings, private_database: Database) -> None:
    """Three callers ask for more than the service reads at once, and every thread for it waits in the database. The
    heartbeats of the same callers are done, joins too."""
    secrets = [Tokens(private_database).create(f"User:{name}")[1] for name in ("ann", "bob", "carl")]
    headers = [{"Authorization": f"Bearer {secret}"} for secret in secrets]
    ensure_group(private_database, "g")

    def beat(header: dict[str, str], epoch: int) -> int:
        body: dict[str, Any] = {
            "group_id": "g",
            "member_id": header["Authorization"][-9:],
            "member_epoch": epoch,
        }
        body |= {"subscribed_topic_names": ["t"]} if epoch == 0 else {}
        answer = httpx.post(url + PATH, json=body, headers=header, trust_env=False, timeout=PATIENCE_S).json()
        assert answer["error_code"] == 0, answer
        return int(answer["member_epoch"])

    with (
        serving(here, coordinate=False) as url,
        ThreadPoolExecutor(24) as pool,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client,
    ):
        with private_database.transaction() as holder:
            holder.exec_driver_sql("lock table sharequeue.delivery_counts in access exclusive mode")
            reads = [pool.submit(client.get, "/v1/groups/g", headers=headers[n % 3]) for n in range(24)]
            wait_for_locks(private_database, POOL_SIZE)
            for header in headers:
                assert beat(header, beat(header, 0)) > 0
            assert not any(read.done() for read in reads)
        assert {read.result().status_code for read in reads} == {200}


def test_a_heartbeat_as_json(client: httpx.Client, make_topic: MakeTopic) -> None:
    """Kafka's fields in snake case; a topic is initialised promptly after the heartbeat that names it."""
    topic = make_topic(2)
    body: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m1",
        "member_epoch": 0,
        "subscribed_topic_names": [topic],
    }
    first = client.post(PATH, json=body).json()
    assert first == {
        "throttle_time_ms": 0,
        "error_code": 0,
        "error_message": None,
        "member_id": "m1",
        "member_epoch": 2,
        "heartbeat_interval_ms": 5000,
        "session_timeout_ms": 45000,
        "assignment": {"topic_partitions": []},
    }
    results: list[dict[str, Any]] = []

    def assigned() -> bool:
        results.append(client.post(PATH, json={**body, "member_epoch": 2}).json())
        return bool(results[-1]["assignment"]["topic_partitions"])

    wait_until(assigned)
    [given] = results[-1]["assignment"]["topic_partitions"]
    assert (given["topic_name"], given["partitions"], results[-1]["member_epoch"]) == (topic, [0, 1], 3)
    assert len(given["topic_id"]) == 22


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not JSON"),
        (b"[]", "`body`"),
        (b"\xff", "not JSON"),
        (b'{"group_id": "g", "member_epoch": 0}', "`member_id`: Field required"),
        (b'{"group_id": "g", "member_id": null, "member_epoch": 0}', "`member_id`"),
        (b'{"group_id": "g", "member_id": "m", "member_epoch": "0"}', "`member_epoch`"),
        (b'{"group_id": "g", "member_id": "m", "member_epoch": 4294967296}', "`member_epoch`"),
        (b'{"group_id": "g", "member_id": "m", "member_epoch": 0, "topics": []}', "`topics`"),
        (b'{"group_id": "g", "member_id": "m\\u0000", "member_epoch": 0}', "NUL"),
        (b'{"group_id": "' + b"g" * 2_000_000 + b'"}', "longer than"),
    ],
)
def test_a_malformed_body(client: httpx.Client, body: bytes, says: str) -> None:
    """What is wrong with a body is INVALID_REQUEST in an ordinary response, with the field's name."""
    reply = client.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()["error_code"]) == (200, 42)
    assert says in reply.json()["error_message"]


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
def test_only_json_is_taken(client: httpx.Client, kind: str | None) -> None:
    """What a page of another site can make a browser send without asking is refused with 415."""
    body = b'{"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}'
    reply = client.post(PATH, content=body, headers={"Content-Type": kind} if kind else {})
    assert reply.status_code == 415
    assert client.get("/v1/groups").json() == {"groups": []}
    json = {"Content-Type": "Application/JSON; charset=utf-8"}
    packed = client.post(PATH, content=gzip.compress(body), headers={**json, "Content-Encoding": "gzip"})
    assert (packed.status_code, "send it without" in packed.json()["error_message"]) == (415, True)
    twice = client.post(PATH, content=body, headers=[*json.items(), ("Content-Type", "text/plain")])
    assert twice.status_code == 415
    assert client.post(PATH, content=body, headers=json).json()["error_code"] == 0


def test_no_request_is_sent_elsewhere(client: httpx.Client) -> None:
    """A redirect would name the service as a proxy sees it, perhaps by http, and take the token along."""
    for path in ("/v1/groups/", "/health/", f"{PATH}/"):
        assert client.get(path, headers={"X-Forwarded-Proto": "http"}).status_code == 404


def test_only_requests_for_our_own_names_are_served(here: Settings) -> None:
    """A request names a host that is ours: the loopback's names and those of the setting, at any port."""
    with (
        serving(here.replace(service_allowed_hosts="queue.example, service")) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client,
    ):
        for host in ("localhost", "127.0.0.1:80", "[::1]:80", "Queue.Example:1", "service"):
            assert client.get("/health", headers={"Host": host}).status_code == 200
        for host in ("evil.example", "service.evil.example", "127.0.0.2", ""):
            refused = client.get("/health", headers={"Host": host})
            assert (refused.status_code, refused.json()["error_code"]) == (400, 42)


@pytest.mark.parametrize("group", ["%00", "a%00b", "g" * 3200])
@pytest.mark.rule("R-AD-4")
def test_an_invalid_group_id_has_its_own_error(client: httpx.Client, group: str) -> None:
    """An id that no group can have is INVALID_GROUP_ID, not a failure of the service."""
    reply = client.get(f"/v1/groups/{group}")
    assert (reply.status_code, reply.json()["error_code"]) == (404, 24)


def test_a_probe_while_kafka_is_away(here: Settings) -> None:
    """With Kafka away heartbeats succeed, so members may be sent here: ready, and degraded told apart, and no probe
    waits until a client of Kafka gives up."""
    with (
        serving(here.replace(bootstrap_servers="127.0.0.1:1")) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client,
    ):
        body = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
        assert client.post(PATH, json=body).json()["error_code"] == 0
        ready = client.get("/ready")
        assert ready.status_code == 200
        assert (ready.json()["ready"], ready.json()["degraded"]) == (True, True)
        assert ready.json()["broker"] != "ok"
        wait_until(lambda: "127.0.0.1:1" in client.get("/ready").json()["broker"])


def test_a_topic_that_is_refused_is_shown_by_the_probe(
    client: httpx.Client, private_database: Database
) -> None:
    """What is wrong with one topic leaves the service ready, and is told."""
    body = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    assert client.post(PATH, json=body).json()["error_code"] == 0
    private_database.rows(text("update sharequeue.members set subscribed_topic_names = '{a b}' returning 1"))
    wait_until(
        lambda: ("topic", "a b") in [(f["kind"], f["topic"]) for f in client.get("/ready").json()["faults"]]
    )
    assert client.get("/ready").json()["ready"] is True
    wait_until(lambda: "not legal" in client.get("/v1/groups/g").json()["waiting"].get("a b", ""))


def test_a_held_group_leaves_the_others_their_threads(
    client: httpx.Client, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many members ask for a group that somebody's transaction holds, another group's are served."""
    patient = heartbeats._HEARTBEAT.text.replace(f"{LOCK_TIMEOUT_MS}", "120000")
    monkeypatch.setattr(heartbeats, "_HEARTBEAT", text(patient))
    join = {"group_id": "held", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    assert client.post(PATH, json={**join, "member_id": "m"}).json()["error_code"] == 0
    with private_database.transaction() as connection, ThreadPoolExecutor(20) as pool:
        connection.execute(text("select from sharequeue.share_groups where group_id = 'held' for update"))
        asked = [
            pool.submit(client.post, PATH, json={**join, "member_id": f"m{number}"}) for number in range(20)
        ]
        other = client.post(PATH, json={**join, "group_id": "free", "member_id": "m"})
        assert other.json()["error_code"] == 0
        assert not any(each.done() for each in asked)
        connection.rollback()
        assert {each.result().json()["error_code"] for each in asked} == {0}


def test_nobody_forges_a_line_of_the_log() -> None:
    """Line breaks in names are shown as in a literal; a traceback is indented."""
    log = OneLine("%(levelname)s %(message)s")
    record = logging.LogRecord(
        "n", logging.INFO, "p", 1, "group %s", ("g\nWARNING all\u2028is lost\x1b[2J",), None
    )
    assert log.format(record) == "INFO group g\\nWARNING all\\u2028is lost\\x1b[2J"
    try:
        raise ValueError("a\nWARNING b")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert all(line.startswith(("INFO ", "    ")) for line in log.format(record).splitlines())


@pytest.mark.parametrize(
    ("host", "said", "required"),
    [
        ("127.0.0.1", [], False),
        ("::1", [], False),
        ("0.0.0.0", [], True),  # noqa: S104
        ("service.example", [], True),
        ("0.0.0.0", ["--allow-unauthenticated"], False),  # noqa: S104
        ("127.0.0.1", ["--require-token"], True),
    ],
)
def test_beyond_this_machine_a_token_is_required(
    host: str, said: list[str], required: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others can reach the service nobody is anonymous, unless the command says otherwise."""
    served: list[dict[str, Any]] = []
    monkeypatch.setattr("sharequeue.service.serve", lambda *_, **named: served.append(named))
    assert CliRunner().invoke(command, ["serve", "--host", host, *said]).exit_code == 0
    assert served == [{"require_token": required, "tls": None}]


@pytest.mark.rule("R-AD-4")
def test_a_group_to_look_at(client: httpx.Client, make_topic: MakeTopic) -> None:
    """The list and the description of groups; one that is not there is GROUP_ID_NOT_FOUND with status 404."""
    topic = make_topic()
    body = {
        "group_id": "a/b",
        "member_id": "m1",
        "member_epoch": 0,
        "subscribed_topic_names": [topic, "absent"],
    }
    client.post(PATH, json=body)
    assert client.get("/v1/groups").json() == {
        "groups": [{"group_id": "a/b", "group_state": "Stable", "members": 1}]
    }
    wait_until(lambda: bool(client.get("/v1/groups/a/b").json()["offsets"]))
    wait_until(lambda: "absent" in client.get("/v1/groups/a/b").json()["waiting"])
    group = client.get("/v1/groups/a/b").json()
    assert (group["group_state"], group["assignor_name"]) == ("Stable", "simple")
    assert group["members"][0]["subscribed_topic_names"] == sorted([topic, "absent"])
    assert (group["offsets"][0]["topic_name"], group["offsets"][0]["lag"]) == (topic, 0)
    report = client.get("/v1/reports/a/b")
    assert report.headers["content-type"].startswith("text/html")
    assert "Share group a/b" in report.text
    assert "default-src 'none'" in report.headers["content-security-policy"]
    assert report.headers["x-frame-options"] == "DENY"
    for path in ("groups", "reports"):
        missing = client.get(f"/v1/{path}/none")
        assert (missing.status_code, missing.json()["error_code"]) == (404, 69)


def test_alive_and_ready(client: httpx.Client, here: Settings) -> None:
    """`/health` says that the process lives, `/ready` that database, schema and broker are there."""
    assert client.get("/health").json() == {"status": "alive", "version": __version__}
    # A probe waits for the broker for less than a second.
    wait_until(lambda: client.get("/ready").json()["broker"] == "ok")
    ready = client.get("/ready")
    assert (ready.status_code, ready.json()["ready"], ready.json()["database"]) == (200, True, "ok")


def test_a_schema_of_the_next_release_leaves_a_replica_ready(
    here: Settings, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Migrated under it, a replica stays ready and is degraded; one that begins before the schema is migrated is not
    ready; one that begins when the schema is known to be newer is."""
    newest = Migration("migrations/9999_tomorrow.sql", "select 1;", repeatable=False)
    changed = Migration("functions/99_tomorrow.sql", "select 1;", repeatable=True)
    record = text("insert into sharequeue.schema_migrations (name, checksum) values (:name, '')")
    with serving(here) as url, httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        assert client.get("/ready").json()["database"] == "ok"
        ours = schema_files.migrations()
        monkeypatch.setattr(schema_files, "migrations", lambda: [*ours, changed])
        answer = client.get("/ready")
        assert (answer.status_code, answer.json()["degraded"]) == (200, True)
        assert "upgrade this replica" in answer.json()["database"]
        with serving(here) as early:
            assert httpx.get(f"{early}/ready", trust_env=False, timeout=PATIENCE_S).status_code == 503
        monkeypatch.undo()
        with private_database.transaction() as connection:
            connection.execute(record, {"name": newest.name})
        with serving(here) as late:
            answer = httpx.get(f"{late}/ready", trust_env=False, timeout=PATIENCE_S)
            assert (answer.status_code, answer.json()["degraded"]) == (200, True)
            assert "newer release" in answer.json()["database"]


def test_a_service_without_its_servers(here: Settings) -> None:
    """Without database and broker the service starts, lives, says what is missing, and refuses with a
    retriable error."""
    nowhere = here.replace(
        database_url="postgresql+psycopg2://nobody@127.0.0.1:1/none", bootstrap_servers="127.0.0.1:1"
    )
    with serving(nowhere) as url, httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        assert client.get("/health").status_code == 200
        ready = client.get("/ready")
        assert ready.status_code == 503
        assert "database does not answer" in ready.json()["database"]
        wait_until(lambda: "127.0.0.1:1 does not answer" in client.get("/ready").json()["broker"])
        body = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
        assert client.post(PATH, json=body).json()["error_code"] == CoordinatorNotAvailable.code
        assert client.get("/v1/groups").status_code == 503
        assert "sharequeue_database_up 0.0" in client.get("/metrics").text


def test_a_probe_while_the_database_stands_still(here: Settings) -> None:
    """A database that takes connections and says nothing, as one that is stopped: 503 with the reason, and no probe
    that waits for ever."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        nowhere = here.replace(
            database_url=f"postgresql+psycopg2://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        )
        with (
            serving(nowhere) as url,
            httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client,
        ):
            ready = client.get("/ready")
            assert ready.status_code == 503
            assert "database does not answer within" in ready.json()["database"]
            assert client.get("/health").status_code == 200


def test_figures_for_prometheus(client: httpx.Client, make_topic: MakeTopic) -> None:
    """Kafka's metrics under the exporter's names, ours under sharequeue_, with group and partition as
    labels."""
    topic = make_topic()
    client.post(
        PATH, json={"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": [topic]}
    )
    wait_until(lambda: "sharequeue_share_partition_lag{" in client.get("/metrics").text)
    figures = client.get("/metrics").text
    assert 'kafka_server_group_coordinator_metrics_group_count{protocol="share"} 1.0' in figures
    assert 'kafka_server_group_coordinator_metrics_share_group_count{state="Stable"} 1.0' in figures
    assert f'sharequeue_share_partition_lag{{group="g",partition="0",topic="{topic}"}} 0.0' in figures
    assert 'sharequeue_heartbeats_total{error_code="0"} 1.0' in figures


def test_a_member_joins_works_and_leaves(
    here: Settings, private_database: Database, make_topic: MakeTopic
) -> None:
    """A membership waits for its assignment, telling what for, shares with a second member, and leaves at
    the end."""
    topic = make_topic(4)
    alter_group_configs(private_database, "g", {"share.assignment.interval.ms": 0})
    said: list[str] = []
    with serving(here) as url, Membership(url, "g", [topic]) as first:
        everything = [SharePartition("g", topic, partition) for partition in range(4)]
        assert first.join(PATIENCE_S, said.append) == everything
        assert topic in said[0]
        assert first.member_epoch == 3
        with Membership(url, "g", [topic]) as second:
            assert len(second.join(PATIENCE_S)) == 2
            assert len(describe_group(private_database, "g").members) == 2
        assert len(describe_group(private_database, "g").members) == 1
        assert not first.lost.is_set()
    assert describe_group(private_database, "g").group_state == "Empty"


@pytest.fixture
def quick(private_database: Database, no_environment: pytest.MonkeyPatch) -> None:
    """Make group `g` heartbeat every 100 ms, with a session of 30 s."""
    no_environment.setenv("SHAREQUEUE_GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS", "50")
    no_environment.setenv("SHAREQUEUE_GROUP_SHARE_MIN_SESSION_TIMEOUT_MS", "500")
    publish_service_configs(private_database, ServiceConfigs.load())
    alter_group_configs(
        private_database,
        "g",
        {
            "share.heartbeat.interval.ms": 100,
            "share.session.timeout.ms": 30_000,
            "share.assignment.interval.ms": 0,
        },
    )


@pytest.mark.usefixtures("quick")
def test_a_member_that_was_put_out_notices(
    here: Settings, private_database: Database, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """A member whose session was ended by the group learns it with its next heartbeat, and may join again."""
    topic = make_topic()
    with serving(here) as url, Membership(url, "g", [topic]) as member:
        member.join(PATIENCE_S)
        private_database.rows(text("delete from sharequeue.members where group_id = 'g' returning member_id"))
        assert member.lost.wait(PATIENCE_S)
        assert "not a member" in caplog.text
        assert member.assignment == []
        assert member.join(PATIENCE_S) == [SharePartition("g", topic, 0)]
        assert not member.lost.is_set()


@pytest.mark.usefixtures("quick")
def test_a_member_outlives_a_restart_of_the_service(
    here: Settings, private_database: Database, make_topic: MakeTopic
) -> None:
    """While the service is away shorter than a session the member stays; its heartbeats go on with the next
    one."""
    topic, port = make_topic(), free_port()
    with serving(here, port) as url:
        member = Membership(url, "g", [topic], request_timeout=2)
        member.join(PATIENCE_S)
    with serving(here, port), member:
        before = describe_group(private_database, "g").members[0].session_expires_at
        wait_until(lambda: describe_group(private_database, "g").members[0].session_expires_at > before)
        assert not member.lost.is_set()
        assert member.assignment == [SharePartition("g", topic, 0)]


@pytest.mark.usefixtures("quick")
def test_a_service_that_stays_away_ends_the_membership(
    here: Settings, private_database: Database, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """After a session's length without a response the member counts itself out; leaving then is quiet and
    quick."""
    alter_group_configs(private_database, "g", {"share.session.timeout.ms": 3000})
    with serving(here) as url:
        member = Membership(url, "g", [make_topic()], request_timeout=1)
        member.join(PATIENCE_S)
    assert member.lost.wait(PATIENCE_S)
    assert "session has expired" in caplog.text
    member.leave()
    member.leave()


def test_joining_without_a_service_says_so() -> None:
    """No service is COORDINATOR_NOT_AVAILABLE with its address, once the time is over."""
    with (
        Membership("http://127.0.0.1:1", "g", ["t"]) as member,
        pytest.raises(CoordinatorNotAvailable, match=r"http://127\.0\.0\.1:1"),
    ):
        member.join(0.2)


def test_a_refused_join_is_raised_at_once(here: Settings) -> None:
    """A refusal that waiting cannot cure ends the join."""
    with (
        serving(here) as url,
        Membership(url, "", ["t"]) as member,
        pytest.raises(InvalidRequest, match="group id"),
    ):
        member.join(PATIENCE_S)


def test_nothing_to_assign_is_an_empty_assignment(
    here: Settings, private_database: Database, topic: str
) -> None:
    """A topic that does not come in time leaves the member in the group, with nothing."""
    with serving(here) as url, Membership(url, "g", [topic]) as member:
        assert member.join(0.5) == []
        assert len(describe_group(private_database, "g").members) == 1
        assert State(private_database).figures.describe("g") == []
