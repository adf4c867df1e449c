"""The HTTP face of groups and coordinator: `create_app` for any ASGI server, `serve` for a process of its own.

Needs the extra `service`.
"""

from __future__ import annotations

from sharequeue.extras import require

require("service", "starlette", "uvicorn", "prometheus_client")

from sharequeue.service.app import create_app
from sharequeue.service.server import Tls, serve

__all__ = ["Tls", "create_app", "serve"]
