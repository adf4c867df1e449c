"""The limits of connections, in front of an application that needs no database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sharequeue.domain.errors import CoordinatorNotAvailable
from sharequeue.domain.settings import ServiceAddress, ServiceLimits, Settings
from sharequeue.groups.heartbeats import HeartbeatRequest
from sharequeue.groups.transports import ServiceTransport
from sharequeue.service import Tls
from sharequeue.service.admission import address
from sharequeue.service.edge.connections import CONNECTION
from sharequeue.service.server import configured, serve
from tests.servers.certificates import Authority
from tests.waiting import PATIENCE_S, wait_until

MANY = 60
LIMITS = ServiceLimits(20, 2_000, 1_000, 2_000)
BEGIN = b"POST /read HTTP/1.1\r\nHost: localhost\r\n"
ATTACKS = {
    "nothing": b"",
    "half a header": BEGIN + b"X-",
    "half a body": BEGIN + b"Content-Length: 1000\r\n\r\n{",
    "endless chunks": BEGIN + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 10,
    "reads nothing": b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20,
    "half a handshake": b"\x16\x03\x01\x02\x00\x01",
}


async def read(request: Request) -> JSONResponse:
    """Return the length of the body, and who calls."""
    connection = request.scope[CONNECTION]
    body = {"length": len(await request.body()), "network": connection.network}
    return JSONResponse({**body, "principal": connection.principal})


its_turn = threading.Event()


async def wait(request: Request) -> JSONResponse:
    """Read the body only once the test says so, as a request that waits for its turn."""
    with request.scope[CONNECTION].waits_for_us():
        while not its_turn.is_set():
            await asyncio.sleep(0.01)
    return await read(request)


async def refuse(request: Request) -> JSONResponse:
    """Return a response without reading the body."""
    return JSONResponse({"refused": True}, 401)


async def long(request: Request) -> JSONResponse:
    """Return more than the kernel holds for a client that does not read."""
    return JSONResponse("x" * 200_000)


async def of_client(request: Request) -> JSONResponse:
    """Return the address of the client."""
    return JSONResponse(address(request))


@contextmanager
def serving(tls: Tls | None = None, limits: ServiceLimits = LIMITS) -> Iterator[int]:
    """Serve with these limits in a thread; give the port."""
    app = Starlette(
        routes=[
            Route("/read", read, methods=["GET", "POST"]),
            Route("/wait", wait, methods=["POST"]),
            Route("/refuse", refuse, methods=["POST"]),
            Route("/long", long),
            Route("/address", of_client),
        ]
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(configured(app, limits, "127.0.0.1", 0, tls))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def ended(client: socket.socket) -> bool:
    """Return whether the service has closed a connection."""
    client.settimeout(0)
    try:
        while client.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("attack", ATTACKS)
def test_slow_clients_make_room_and_are_closed(attack: str, encrypted: bool, tmp_path: Path) -> None:
    """Three times as many as the service takes: another client is served, and each of them loses its connection. With
    TLS none of them finishes its handshake."""
    authority = Authority(tmp_path)
    pair = authority.signed("service")
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    with serving(Tls(pair.certificate, pair.key) if encrypted else None) as port:
        slow = []
        for _ in range(MANY):
            slow.append(client := socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with contextlib.suppress(OSError):
                client.sendall(ATTACKS[attack])
        url = f"{'https' if encrypted else 'http'}://127.0.0.1:{port}/read"
        for _ in range(3):
            assert httpx.get(url, verify=trusting, trust_env=False, timeout=PATIENCE_S).json()["length"] == 0
        for each in slow:
            wait_until(lambda each=each: ended(each))  # type: ignore[misc]
            each.close()


def test_a_certificate_is_the_principal_of_its_connection_alone(tmp_path: Path) -> None:
    """Of each request on it, with TLS 1.2 and 1.3; a client without one has none, a forged one is refused. A proxy's
    header changes neither that nor the network."""
    authority = Authority(tmp_path)
    pair, ann = authority.signed("service"), authority.signed("ann")
    (tmp_path / "other").mkdir()
    forged = Authority(tmp_path / "other", "another").signed("ann")
    with serving(Tls(pair.certificate, pair.key, authority.certificate)) as port:
        url = f"https://127.0.0.1:{port}/read"

        def client(version: ssl.TLSVersion, shown: object = None) -> httpx.Client:
            context = ssl.create_default_context(cafile=str(authority.certificate))
            context.minimum_version = context.maximum_version = version
            if shown is not None:
                context.load_cert_chain(shown.certificate, shown.key)  # type: ignore[attr-defined]
            return httpx.Client(
                verify=context, trust_env=False, timeout=PATIENCE_S, headers={"X-Forwarded-For": "10.1.1.1"}
            )

        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with client(version, ann) as certified, client(version) as other:
                for _ in range(2):
                    for each, principal in ((certified, "User:CN=ann"), (other, None)):
                        found = each.post(url, content=b"x" * 300_000).json()
                        assert found == {"length": 300_000, "network": "127.0.0.1", "principal": principal}
            with client(version, forged) as stranger, pytest.raises(httpx.TransportError):
                stranger.get(url)


def test_a_refused_body_is_read_to_its_end() -> None:
    """The client gets the response, and the connection serves the next request."""
    with (
        serving() as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE_S) as client,
    ):
        for _ in range(3):
            assert client.post("/refuse", content=b"x" * 500_000).status_code == 401
            assert client.post("/read", content=b"xyz").json()["length"] == 3


def test_a_body_that_waits_for_its_turn_is_not_late() -> None:
    """The time in which the service does not read a body is not its client's: the body is read in its turn, after a
    slow client was closed for the same time."""
    its_turn.clear()
    begin = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n"
    with serving() as port:
        waiting, slow = (socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(2))
        with waiting, slow:
            waiting.sendall(begin % b"/wait")
            slow.sendall(begin % b"/read")
            wait_until(lambda: ended(slow))
            its_turn.set()
            waiting.sendall(b"x" * 1_000_000)
            waiting.settimeout(PATIENCE_S)
            assert waiting.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_many_requests_at_once_are_served_in_turn() -> None:
    """A thousand on one connection, before the first response is read."""
    with serving() as port, socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        request = b"GET /read HTTP/1.1\r\nHost: localhost\r\n"
        sending = threading.Thread(
            target=client.sendall, args=((request + b"\r\n") * 999 + request + b"Connection: close\r\n\r\n",)
        )
        sending.start()
        found = b""
        while more := client.recv(65536):
            found += more
        sending.join()
        assert found.count(b" 200 ") == 1000
        assert json.loads(found.rpartition(b"\r\n\r\n")[2])["length"] == 0


def test_long_headers_are_refused() -> None:
    """Those of more than 64 KiB with 431, those without end by the end of the connection."""
    begin = b"GET /read HTTP/1.1\r\nHost: localhost\r\nX-A: "
    hour = 3_600_000
    with serving(limits=ServiceLimits(20, hour, hour, hour)) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.sendall(begin + b"a" * 70_000 + b"\r\nConnection: close\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 431 ")
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    client.sendall(begin + b"a" * 16_384)
            wait_until(lambda: ended(client))


def test_a_client_names_what_tls_lacks(tmp_path: Path) -> None:
    """An authority that is not trusted, https for a service without a certificate, http for one with."""
    authority, another = Authority(tmp_path), Authority(tmp_path, "another")
    pair = authority.signed("service")

    def failure(address: ServiceAddress) -> str:
        transport = ServiceTransport(address, timeout=PATIENCE_S)
        with contextlib.closing(transport), pytest.raises(CoordinatorNotAvailable) as found:
            transport(HeartbeatRequest("g", "m", 0))
        return found.value.message

    with serving(Tls(pair.certificate, pair.key)) as port:
        untrusted = failure(ServiceAddress(f"https://127.0.0.1:{port}", None, another.certificate))
        assert "is not trusted" in untrusted
        assert "SHAREQUEUE_SERVICE_SSL_CA_LOCATION" in untrusted
        assert "begins with https://" in failure(ServiceAddress(f"http://127.0.0.1:{port}"))
    with serving() as port:
        plain = failure(ServiceAddress(f"https://127.0.0.1:{port}", None, authority.certificate))
        assert "does not speak TLS" in plain


def test_a_client_that_has_finished_sending_gets_its_responses() -> None:
    """It closes its side after the request, as `nc` and some probes do; then the service closes its own. A request
    that is not complete is closed, too, and so is a connection without one."""
    request = b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    for sent, responses in ((request, 1), (request * 3, 3), (request[:-1], 0), (request[:20], 0), (b"", 0)):
        with serving() as port, socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while part := client.recv(65536):
                    got += part
            assert got.count(b"200 OK") == responses, sent


def test_a_proxy_names_clients_by_addresses_only() -> None:
    """Whatever else stands in its header is neither stored nor shown: the connection's own address is."""
    with serving() as port:
        url = f"http://127.0.0.1:{port}/address"

        def named(header: str) -> str:
            response = httpx.get(
                url, headers={"X-Forwarded-For": header}, trust_env=False, timeout=PATIENCE_S
            )
            return str(response.json())

        assert [named(header) for header in ("10.1.1.1", "10.1.1.1:80", "2001:db8::7")] == [
            "10.1.1.1",
            "10.1.1.1",
            "2001:db8::7",
        ]
        for header in ("x" * 60_000, "<b>", "unknown", ""):
            assert named(header) == "127.0.0.1"


def test_an_address_that_is_taken_ends_the_process_with_1(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the address and what to do."""
    for name in ("log_to_stderr", "favour_heartbeats"):
        monkeypatch.setattr(f"sharequeue.service.server.{name}", lambda *_: None)
    monkeypatch.setattr("sharequeue.service.server.create_app", lambda *_, **__: Starlette())
    settings = Settings({"database_url": "postgresql://h/d", "bootstrap_servers": "h:9092"})
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        serve(settings, "127.0.0.1", taken.getsockname()[1])
    assert ended.value.code == 1
    assert "choose another --host or --port" in caplog.text
