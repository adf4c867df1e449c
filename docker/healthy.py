"""Exit with 0 when a request to a URL succeeds: the health check of our containers.

The slim image has neither curl nor wget, and the check must not use a proxy that is set for the container.
"""

from __future__ import annotations

import sys
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 4


def main(url: str) -> int:
    """Return the exit code; stderr has the reason if it is not 0."""
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", address.path or "/")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    if 200 <= status < 300:
        return 0
    print(f"{url}: status {status}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
