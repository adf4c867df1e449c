"""The bytes of a record on a page, with their kind.

Bytes that were cut off, or that start like JSON but are not JSON, are marked as such: nothing is guessed, and nothing
is changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sharequeue.words.record_bytes import is_text, text_of


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes as text, and their kind."""

    kind: str
    text: str


def shown(content: bytes | None, size: int | None = None) -> Shown:
    """Return bytes as text; `size` is the full length if they were cut off."""
    if not content:
        return Shown("null" if content is None else "empty", "")
    whole = size is None or size <= len(content)
    length = f"{len(content) if size is None else size:,} bytes"
    cut = "" if whole else f", the first {len(content):,}"
    text = text_of(content, size=size) or ""
    if not is_text(content, size):
        schema = int.from_bytes(content[1:5]) if content[0] == 0 and len(content) > 5 else None
        kind = "bytes" if schema is None else f"bytes, maybe with the schema id {schema}"
        return Shown(f"{kind}; {length}{cut}", text)
    return Shown(f"{'JSON' if whole and _is_json(text) else 'text'}, {length}{cut}", text)


def brief(content: bytes | None, size: int | None = None, most: int = 120) -> str:
    """Return the first `most` bytes on one line."""
    if not content:
        return shown(content).kind
    return " ".join((text_of(content, most=most, size=size) or "").split())


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
