"""What ``docs/testing.md`` shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_queue_in_memory_does_what_the_document_says() -> None:
    """The block that begins an in-memory state, with its assertions."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (shown,) = [block for block in blocks if "InMemoryState()" in block]
    exec(compile(shown, str(DOCUMENT), "exec"), {})  # noqa: S102 - our own document
