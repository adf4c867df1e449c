"""One bad client: it opens connections and says nothing, or half of something, or reads nothing, or asks for ever."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
import uvicorn

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest
from sharequeue.groups.tokens import Tokens
from sharequeue.groups.transports import ServiceTransport
from sharequeue.service import Tls, create_app
from sharequeue.service.edge.connections import MAX_HEADER_BYTES
from sharequeue.service.health.servers import DatabaseProbe, DatabaseState
from sharequeue.service.server import configured
from tests.servers.certificates import Authority, Pair
from tests.waiting import PATIENCE_S, wait_for_locks, wait_until

MANY = 260
PATH = "/v1/share-group-heartbeat"
BEAT = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
LIMITS = {
    "service_max_connections": 100,
    "service_request_timeout_ms": 1_000,
    "service_answer_timeout_ms": 1_000,
    "service_idle_timeout_ms": 2_000,
}


@contextmanager
def bounded(
    settings: Settings, database: Database, pair: Pair | None = None, **limits: int
) -> Iterator[tuple[str, int]]:
    """Run the service as `sharequeue serve` does, in a thread, without its coordinator; return its address. With a
    certificate it has TLS."""
    url = database.engine.url.render_as_string(hide_password=False)
    settings = settings.replace(database_url=url, **{**LIMITS, **limits})
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        tls = None if pair is None else Tls(pair.certificate, pair.key)
        app = create_app(settings, coordinate=False)
        server = uvicorn.Server(configured(app, settings.service_limits, "127.0.0.1", 0, tls))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


@pytest.fixture
def address(settings: Settings, private_database: Database) -> Iterator[tuple[str, int]]:
    """Give the address of a service with small bounds; group g is there."""
    alter_group_configs(private_database, "g", {})
    with bounded(settings, private_database) as address:
        yield address


def idle(_: socket.socket) -> None:
    """Say nothing."""


def half_a_header(client: socket.socket) -> None:
    """Begin a request."""
    client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-")


def half_a_body(client: socket.socket) -> None:
    """Promise a body, and send none of it."""
    client.sendall(
        b"POST /v1/share-group-heartbeat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000\r\n\r\n{"
    )


def endless_chunks(client: socket.socket) -> None:
    """Send a body in chunks, of which none is the last."""
    client.sendall(
        b"POST /v1/delete-groups HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 10
    )


def reads_nothing(client: socket.socket) -> None:
    """Ask for much, many times, and read none of it."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)


@contextmanager
def clients(
    address: tuple[str, int], number: int, say: Callable[[socket.socket], None]
) -> Iterator[list[socket.socket]]:
    """Connect so many, each of which says something."""
    opened: list[socket.socket] = []
    try:
        for _ in range(number):
            opened.append(socket.create_connection(address, timeout=PATIENCE_S))
            with contextlib.suppress(ConnectionError):  # the service may have ended it already
                say(opened[-1])
        yield opened
    finally:
        for each in opened:
            each.close()


@pytest.mark.parametrize(
    "say",
    [
        idle,
        reads_nothing,
        *(
            pytest.param(each, marks=pytest.mark.deep)
            for each in (half_a_header, half_a_body, endless_chunks)
        ),
    ],
)
def test_idle_connections_do_not_block_other_clients(
    address: tuple[str, int], say: Callable[[socket.socket], None]
) -> None:
    """More than the service takes: it answers probes and the heartbeats of others, and drops the many."""
    url = f"http://{address[0]}:{address[1]}"
    with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as other:
        assert other.post(PATH, json=BEAT).json()["error_code"] == 0
        with clients(address, MANY, say) as many:
            for _ in range(3):
                assert httpx.get(f"{url}/health", trust_env=False, timeout=PATIENCE_S).status_code == 200
                assert (
                    httpx.post(f"{url}{PATH}", json=BEAT, trust_env=False, timeout=PATIENCE_S).json()[
                        "error_code"
                    ]
                    == 0
                )
            for each in many:
                wait_until(lambda each=each: _ended(each))  # type: ignore[misc]


def _ended(client: socket.socket) -> bool:
    client.settimeout(0)
    try:
        while client.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def said(address: tuple[str, int], *parts: bytes, until: bytes | None = None) -> bytes:
    """What the service answers to these bytes before it closes; up to a text that must come, or for a moment."""
    with socket.create_connection(address, timeout=0.5 if until is None else PATIENCE_S) as client:
        with contextlib.suppress(ConnectionError):
            for each in parts:
                client.sendall(each)
        found = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while (until is None or until not in found) and (more := client.recv(65536)):
                found += more
        return found


def test_what_is_no_request_is_refused_and_forgotten(
    address: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Headers without end, of either kind, two lengths, an upgrade, an old version: no traceback, no hang, and the
    next one is served; a thousand requests at once are served in turn."""
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    long = b"X-A: " + b"a" * (MAX_HEADER_BYTES + 1000)
    assert (
        b" 431 " in said(address, get + long + b"\r\n\r\n") or said(address, get + long + b"\r\n\r\n") == b""
    )
    assert b" 200 " not in said(address, get, *[b"X-A: " + b"a" * 1000 + b"\r\n"] * 400)
    post = b"POST /v1/delete-groups HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert b" 200 " not in said(address, post + b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}")
    assert b" 200 " not in said(address, post + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}")
    closing = get + b"Connection: close\r\n\r\n"
    assert said(address, (get + b"\r\n") * 999 + closing, until=b"connection: close").count(b" 200 ") == 1000
    # Of two hosts, a proxy before us may have looked at the other one.
    for host in (b"evil.example", b"localhost"):
        asked = get + b"Host: " + host + b"\r\nConnection: close\r\n\r\n"
        assert b" 400 " in said(address, asked, until=b" 400 ")
    for asked in (
        get + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n",
    ):
        assert b"alive" in said(address, asked, until=b"alive")
    for nonsense in (
        b"\x16\x03\x01\x02\x00",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"\0" * 70_000,
    ):
        assert b" 200 " not in said(address, nonsense)
    assert b" 400 " in said(address, b"FOO / HTTP/1.1\r\n\r\n", until=b" 400 ")
    assert b"alive" in said(address, closing, until=b"alive")
    assert not [record for record in caplog.records if record.exc_info]


def test_a_request_may_begin_before_the_one_before_it_is_answered(
    settings: Settings, private_database: Database
) -> None:
    """And end after it."""
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        bounded(settings, private_database, service_request_timeout_ms=30_000) as address,
        socket.create_connection(address, timeout=PATIENCE_S) as client,
    ):
        client.sendall(ask + ask[:20])
        assert _answer(client).startswith(b"HTTP/1.1 200")
        client.sendall(ask[20:])
        assert _answer(client).startswith(b"HTTP/1.1 200")


def test_who_asks_for_nothing_more_is_let_go(address: tuple[str, int]) -> None:
    """After the idle time-out; the answer came before."""
    with socket.create_connection(address, timeout=PATIENCE_S) as client:
        asked = time.monotonic()
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert _answer(client).startswith(b"HTTP/1.1 200")
        assert client.recv(1) == b""
        assert time.monotonic() - asked > LIMITS["service_idle_timeout_ms"] / 1000


def _answer(client: socket.socket) -> bytes:
    """Read one answer whose body is a JSON object."""
    found = b""
    while not found.endswith(b"}"):
        more = client.recv(1000)
        assert more, found
        found += more
    return found


@pytest.mark.deep
def test_who_asks_too_often_waits(settings: Settings, private_database: Database) -> None:
    """As on a broker: first it is told to wait, then nothing is done for it; others are served as before."""
    alter_group_configs(private_database, "g", {})
    _, secret = Tokens(private_database).create("User:ann")
    ann = {"Authorization": f"Bearer {secret}"}
    with bounded(settings, private_database, service_requests_per_second=10) as (host, port):
        url = f"http://{host}:{port}"
        with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
            found = [client.post(PATH, json=BEAT).json()]
            while found[-1]["error_code"] == 0 and len(found) < 200:
                found.append(client.post(PATH, json=BEAT).json())
            *served, refused = found
            told = [each["throttle_time_ms"] for each in served]
            assert told[0] == 0
            assert 0 < max(told) <= 2000, told
            assert (refused["error_code"], refused["member_id"]) == (89, None), found
            assert refused["throttle_time_ms"] > 0
            looks = (client.get("/v1/groups") for _ in range(20))
            looked = next(each for each in looks if each.status_code != 200)
            assert (looked.status_code, looked.json()["error_code"]) == (429, 89)
            assert int(looked.headers["Retry-After"]) >= 1
            assert client.get("/health").status_code == client.get("/ready").status_code == 200
            assert client.get("/v1/groups", headers=ann).status_code == 200
            asked = (
                client.post("/v1/share-group-describe", json={"group_ids": ["g"]}).json() for _ in range(20)
            )
            refused = next(each for each in asked if each.get("error_code"))
            assert (refused["error_code"], refused["throttle_time_ms"] > 0) == (89, True)
        beats = ServiceTransport(url)
        answers = [beats(HeartbeatRequest("g", "n", 0, None, ("t",))) for _ in range(4)]
        assert [each.error_code for each in answers][-1] == 0, answers
        beats.close()


@pytest.mark.deep
def test_one_principal_leaves_threads_for_others(settings: Settings, private_database: Database) -> None:
    """Heartbeats of one principal that all wait for locked groups do not hold up another principal's."""
    groups = [f"g{number}" for number in range(20)]
    for group in [*groups, "g"]:
        alter_group_configs(private_database, group, {})
    _, secret = Tokens(private_database).create("User:ann")
    with (
        bounded(settings, private_database) as (host, port),
        private_database.transaction() as holding,
        ThreadPoolExecutor(20) as pool,
    ):
        holding.execute(sa.text("select from sharequeue.share_groups where group_id like 'g_%' for update"))

        def beat(group: str, **headers: str) -> int:
            body = {**BEAT, "group_id": group}
            answer = httpx.post(
                f"http://{host}:{port}{PATH}", json=body, headers=headers, trust_env=False, timeout=PATIENCE_S
            )
            return int(answer.json()["error_code"])

        waiting = [pool.submit(beat, group) for group in groups]
        wait_for_locks(private_database)
        assert beat("g", Authorization=f"Bearer {secret}") == 0
        assert not all(each.done() for each in waiting)
        assert {each.result() for each in waiting} == {15}


@pytest.mark.deep
def test_unfinished_handshakes_do_not_block_other_clients(
    settings: Settings, private_database: Database, tmp_path: Path
) -> None:
    """With TLS, too: who connects and shakes no hands makes room for others, and is not waited for."""
    authority = Authority(tmp_path)
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        bounded(settings, private_database, authority.signed("service")) as address,
        clients(address, MANY, idle) as many,
    ):
        for each in many[:20]:
            with contextlib.suppress(ConnectionError):
                each.sendall(b"\x16\x03\x01\x02\x00\x01")
        for _ in range(3):
            url = f"https://{address[0]}:{address[1]}/health"
            assert httpx.get(url, verify=trusting, trust_env=False, timeout=PATIENCE_S).status_code == 200
        for each in many:
            wait_until(lambda each=each: _ended(each), PATIENCE_S)  # type: ignore[misc]


@pytest.mark.deep
def test_wrong_tokens_are_answered_later_and_later(settings: Settings, private_database: Database) -> None:
    """More than twenty a second from one address: each takes longer. A right one is answered at once."""
    _, secret = Tokens(private_database).create("User:ann")
    with bounded(settings, private_database) as (host, port):
        url = f"http://{host}:{port}/v1/groups"

        def ask(secret: str) -> tuple[int, float]:
            began = time.monotonic()
            headers = {"Authorization": f"Bearer {secret}"}
            answer = httpx.get(url, headers=headers, trust_env=False, timeout=PATIENCE_S)
            return answer.status_code, time.monotonic() - began

        with ThreadPoolExecutor(20) as pool:
            wrong = [pool.submit(ask, f"{secret[:-2]}{number:02}") for number in range(100)]
            wait_until(lambda: sum(each.done() for each in wrong) > 50)
            right = min(ask(secret) for _ in range(3))
            assert {each.result()[0] for each in wrong} == {401}
            slowest = max(each.result()[1] for each in wrong)
            assert slowest > 1
        assert right[0] == 200
        assert right[1] < slowest


@pytest.mark.deep
def test_many_probes_ask_the_servers_once(
    settings: Settings, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty `/ready` at once, from somebody without a name, are one question to the database."""
    asked: list[DatabaseState] = []
    go_on = threading.Event()
    ask = DatabaseProbe.__call__

    def slow(probe: DatabaseProbe) -> DatabaseState:
        go_on.wait(PATIENCE_S)
        asked.append(ask(probe))
        return asked[-1]

    monkeypatch.setattr(DatabaseProbe, "__call__", slow)
    with bounded(settings, private_database) as (host, port), ThreadPoolExecutor(30) as pool:
        url = f"http://{host}:{port}"
        probes = [
            pool.submit(httpx.get, f"{url}/ready", trust_env=False, timeout=PATIENCE_S) for _ in range(30)
        ]
        assert (
            httpx.post(f"{url}{PATH}", json=BEAT, trust_env=False, timeout=PATIENCE_S).json()["error_code"]
            == 0
        )
        go_on.set()
        assert {each.result().status_code for each in probes} == {200}
    assert 1 <= len(asked) <= 3
