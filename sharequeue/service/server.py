"""Run the service as a process.

It is uvicorn on one address, the coordinator in threads, and a log on stderr. The process survives the loss of the
database and of the broker, and ends within seconds on SIGTERM or Ctrl-C, even while it waits for a server.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvicorn
from sqlalchemy import make_url
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from sharequeue import __version__
from sharequeue.domain.settings import ServiceLimits, Settings
from sharequeue.domain.settings.pem_files import PemFile, load_authority, load_identity
from sharequeue.service.app import create_app
from sharequeue.service.edge.connections import Connections
from sharequeue.service.logs import log_to_stderr

_log = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 3
_COLLECT = (700, 1, 10_000)
"""The thresholds of Python's garbage collector: it checks the youngest objects after so many new ones, the second
generation at each second of these times, and all objects after ten thousand of those: minutes apart, not seconds."""

_SWITCH_SECONDS = 0.001
"""How long a thread keeps Python's lock while another one waits for it. A heartbeat waits for it several times, on
the event loop and in its thread, while a scrape's text is made: each time 5 ms by default."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of a server with TLS. With `client_ca`, a client may present a certificate of that authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


def serve(
    settings: Settings, host: str, port: int, *, require_token: bool = False, tls: Tls | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; with `require_token` every caller needs a token.

    Exits the process with 1 if it cannot bind the address. Raises the errors of `create_app`, and SettingMissing
    for files of `tls` that cannot be used.
    """
    log_to_stderr(settings.log_format)
    # All its warnings are caused by clients, one for each request that is not HTTP: they would fill the disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    names = ",".join((*settings.allowed_hosts, host))
    app = create_app(settings.replace(service_allowed_hosts=names), require_token=require_token)
    server = uvicorn.Server(configured(app, settings.service_limits, host, port, tls))
    database = make_url(settings.database_url)
    _log.info(
        "sharequeue %s on %s://%s:%d, %s, database %s at %s, Kafka at %s",
        __version__,
        "http" if tls is None else "https",
        host,
        port,
        "a token is required" if require_token else "no token is required",
        database.database,
        database.host or database.query.get("host", "a local socket"),
        settings.bootstrap_servers,
    )
    favour_heartbeats()
    # The signal itself ends the process once uvicorn has shut down: threads that wait for a lost server do not delay
    # it.
    try:
        server.run()
    except SystemExit:
        # uvicorn has logged the error of the address, and would exit with 3.
        _log.error(
            "cannot listen on %s:%d: stop the program that listens there, or choose another --host or --port",
            *(host, port),
        )
    if not server.started:
        sys.exit(1)


def favour_heartbeats() -> None:
    """Let neither the garbage collector nor another thread of this process stop heartbeats for long."""
    _collect_rarely()
    sys.setswitchinterval(_SWITCH_SECONDS)


def _collect_rarely() -> None:
    """Make Python's garbage collector stop this process for milliseconds, not for tenths of a second.

    All requests wait while it runs, and a run takes as long as it finds living objects. Ten thousand connections are
    one and a half million of them, so all are checked rarely. Each heartbeat replaces about a hundred objects of its
    connection, which live until the next one, so the young ones are checked often, while they are few. There is
    hardly any garbage to find: the objects of a request are freed at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT)


def configured(
    app: ASGIApp, limits: ServiceLimits, host: str, port: int, tls: Tls | None = None
) -> uvicorn.Config:
    """Return the configuration of uvicorn with which the service keeps its limits."""
    connections = Connections(limits, AutoHTTPProtocol, None if tls is None else _context(tls))
    # Inside the limits, which use the connection's address, not the one that a proxy has sent.
    behind_proxy = ProxyHeadersMiddleware(
        cast("Any", app), os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1")
    )
    return uvicorn.Config(
        cast("Any", connections.guard(cast("Any", behind_proxy))),
        host=host,
        port=port,
        http=cast("Any", connections.protocol),
        ws="none",
        # uvloop ignores `pause_reading` in `connection_made`, and would read the first bytes of the handshake.
        loop="auto" if tls is None else "asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=math.ceil(limits.idle_timeout_ms / 1000),
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_identity(context, PemFile(tls.certificate, "--ssl-certificate"), PemFile(tls.key, "--ssl-key"))
    if tls.client_ca is not None:
        load_authority(context, PemFile(tls.client_ca, "--ssl-client-ca"))
        # A client without a certificate needs a token, or is anonymous.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
