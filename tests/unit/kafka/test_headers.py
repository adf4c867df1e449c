"""Headers of consumed messages are read by one function."""

from __future__ import annotations

import re
from pathlib import Path

import sharequeue

HOME = Path(sharequeue.__file__).parent


def test_nothing_else_calls_the_clients_headers() -> None:
    """A second call of `Message.headers()` ends the process if a header's name is not UTF-8: one module calls it."""
    calls = re.compile(r"\.headers\(\)|Message\.headers|methodcaller\(.headers")
    found = [str(path.relative_to(HOME)) for path in HOME.rglob("*.py") if calls.search(path.read_text())]
    assert found == ["kafka/headers.py"]
