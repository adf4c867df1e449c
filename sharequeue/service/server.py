"""How does the service run as a process?

uvicorn on one address, the coordinator in threads beside it, a log on stderr. It outlives the loss of the
database and of the broker, and ends within seconds on SIGTERM or Ctrl-C, whatever it waits for.
"""

from __future__ import annotations

import logging
import sys

import uvicorn
from sqlalchemy import make_url

from sharequeue import __version__
from sharequeue.service.app import create_app
from sharequeue.settings import Settings

_log = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 3


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Exits the process with 1 when the address cannot be had. Raises what `create_app` raises.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    app = create_app(settings)
    database = make_url(settings.database_url)
    _log.info(
        "sharequeue %s on http://%s:%d, database %s at %s, Kafka at %s",
        __version__,
        host,
        port,
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
    server = uvicorn.Server(config)
    # Ends by the signal itself, once uvicorn has shut down: no thread that waits for a lost server holds it up.
    server.run()
    if not server.started:
        sys.exit(1)
