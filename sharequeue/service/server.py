"""How does the service run as a process?

uvicorn on one address, the coordinator in threads beside it, a log on stderr. It outlives the loss of the
database and of the broker, and ends within seconds on SIGTERM or Ctrl-C, whatever it waits for.
"""

from __future__ import annotations

import gc
import logging
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from sqlalchemy import make_url

from sharequeue import __version__
from sharequeue.service.app import create_app
from sharequeue.service.edge.connections import BoundedServer
from sharequeue.service.logs import log_to_stderr
from sharequeue.settings import Settings

_log = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 3
_COLLECT = (20_000, 10, 5)
"""When Python looks for objects that hold each other and nobody else holds: after so many new objects at the youngest
ones, each tenth time at the older ones, each fifth time of those at all."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of a server with TLS. With `client_ca`, a client may show a certificate of that authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


def serve(
    settings: Settings, host: str, port: int, *, require_token: bool = False, tls: Tls | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; with `require_token` nobody is anonymous.

    Exits the process with 1 when the address cannot be had. Raises what `create_app` raises.
    """
    log_to_stderr(settings.log_format)
    # Its warnings are each a client's doing, a line for every request that is none: they would fill the disk.
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.levelno != logging.WARNING)
    names = ",".join((*settings.allowed_hosts, host))
    app = create_app(settings.replace(service_allowed_hosts=names), require_token=require_token)
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
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        server_header=False,
    )
    if tls is not None:
        _encrypt(config, tls)
    server = BoundedServer(config, settings.service_limits)
    collect_rarely()
    # Ends by the signal itself, once uvicorn has shut down: no thread that waits for a lost server holds it up.
    server.run()
    if not server.started:
        sys.exit(1)


def collect_rarely() -> None:
    """Have Python's collector stop this process less often.

    It holds up everybody while it looks. Ten thousand connections are half a million objects, and by Python's own
    bounds it looked at all of them every second or two, for most of a second: heartbeats took 595 ms (p99), and two
    thirds of a core went into it. There is hardly anything to find: what a request leaves is freed at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT)


def _encrypt(config: uvicorn.Config, tls: Tls) -> None:
    config.ssl_certfile, config.ssl_keyfile = tls.certificate, tls.key
    if tls.client_ca is not None:
        # Who shows none is asked for a token, or is anonymous.
        config.ssl_ca_certs, config.ssl_cert_reqs = str(tls.client_ca), ssl.CERT_OPTIONAL
