"""The HTTP service for groups, with the coordinator: `create_app` for any ASGI server, `serve` to run it.

Needs the extra `service`.
"""

from __future__ import annotations

from sharequeue.domain.extras import require

require("service", "starlette", "uvicorn", "prometheus_client")

from sharequeue.service.app import create_app
from sharequeue.service.server import Tls, serve

__all__ = ["Tls", "create_app", "serve"]
