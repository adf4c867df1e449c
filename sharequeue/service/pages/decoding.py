"""The bytes of a record, formatted for people.

Text is shown as text, other bytes in hexadecimal. Bytes that were cut off, or that start like JSON but are not JSON,
are marked as such: nothing is guessed, and nothing is changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

_ROW = 16
_MOST_DUMPED = 1_024


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes as text, and their kind."""

    kind: str
    text: str


def shown(content: bytes | None, size: int | None = None) -> Shown:
    """Return bytes as text; `size` is the full length if they were cut off."""
    if content is None:
        return Shown("null", "")
    whole = size is None or size <= len(content)
    length = f"{len(content) if size is None else size:,} bytes"
    if not content:
        return Shown("empty", "")
    cut = "" if whole else f", the first {len(content):,}"
    text = _text(content, whole)
    if text is None:
        schema = int.from_bytes(content[1:5]) if content[0] == 0 and len(content) > 5 else None
        kind = "bytes" if schema is None else f"bytes, maybe with the schema id {schema}"
        return Shown(f"{kind}; {length}{cut}", dump(content[:_MOST_DUMPED]))
    return Shown(f"{'JSON' if whole and _is_json(text) else 'text'}, {length}{cut}", text)


def brief(content: bytes | None, size: int | None = None, most: int = 120) -> str:
    """Return the beginning of bytes on one line."""
    found = shown(content, size)
    if not found.text:
        return found.kind
    if content is not None and found.kind.startswith("bytes"):
        return content[:24].hex(" ") + (" …" if len(content) > 24 else "")
    line = " ".join(found.text.split())
    return line if len(line) <= most else line[:most] + "…"


def dump(content: bytes) -> str:
    """Return a hexadecimal dump: position, hexadecimal, characters."""
    rows = []
    for at in range(0, len(content), _ROW):
        row = content[at : at + _ROW]
        plain = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)
        rows.append(f"{at:06x}  {row.hex(' '):<{_ROW * 3 - 1}}  {plain}")
    return "\n".join(rows)


def _text(content: bytes, whole: bool) -> str | None:
    """Decode bytes as text; None if they are not text. An incomplete character at the end is left out."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if whole or error.start < len(content) - 3:
            return None
        text = content[: error.start].decode()
    return None if any(each < " " and each not in "\t\r\n" for each in text) else text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
