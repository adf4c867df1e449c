"""What do bytes of a record look like to people?

As text where they are text, else as bytes in hexadecimal. What was cut off, or is no JSON though it begins so, is
named as what it is: nothing is guessed, and nothing is changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

_ROW = 16
_MOST_DUMPED = 1_024


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes as text, and what they are."""

    kind: str
    text: str


def shown(content: bytes | None, size: int | None = None) -> Shown:
    """Return bytes, of which there may be more (`size`), as text."""
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
    """Return bytes as people read them: place, hexadecimal, characters."""
    rows = []
    for at in range(0, len(content), _ROW):
        row = content[at : at + _ROW]
        plain = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)
        rows.append(f"{at:06x}  {row.hex(' '):<{_ROW * 3 - 1}}  {plain}")
    return "\n".join(rows)


def _text(content: bytes, whole: bool) -> str | None:
    """The text that bytes are; None where they are none. A character that was cut off at the end is left out."""
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
