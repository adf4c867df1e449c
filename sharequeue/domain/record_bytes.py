"""Format the bytes of a record's key, value or header for people, read the number in a header, and hash keys."""

from __future__ import annotations

import hashlib
from codecs import getincrementaldecoder
from collections.abc import Iterable
from uuid import UUID

from sharequeue.domain.offsets import OffsetSet, sets_of

MOST_HEXADECIMAL = 1_024
"""Maximum number of bytes that are formatted in hexadecimal."""


def text_of(
    content: bytes | None, *, escaped: bool = False, most: int | None = None, size: int | None = None
) -> str | None:
    """Return bytes as text: UTF-8 as it is, other bytes in hexadecimal such as `0xff00`; None for null.

    With `escaped`, everything is text, in which each byte that is not UTF-8 is escaped (`\\xff`). Without it, bytes
    with control characters other than tab and line ends count as other bytes. Of `most` bytes or fewer, nothing is
    left out. `size` is the full length if `content` is only the beginning. The text ends with `…` if bytes are left
    out.
    """
    if content is None:
        return None
    if escaped:
        return content.decode(errors="backslashreplace")
    first = content[:most]
    text = _decoded(first, whole=len(first) == (size or len(content)))
    if text is None:
        first = first[:MOST_HEXADECIMAL]
        text = f"0x{first.hex()}"
    return text if len(first) == (size or len(content)) else f"{text}…"


def key_hash(key: bytes) -> UUID:
    """Return the key hash of a record: the MD5 of its key, as Spark's and Postgres's `md5` compute it."""
    return UUID(bytes=hashlib.md5(key, usedforsecurity=False).digest())


def offsets_by_key(keys: Iterable[tuple[int, bytes | None]]) -> dict[UUID | None, OffsetSet]:
    """Return the offsets of records, given with their keys, by the hash of their key; None: they have none."""
    found: dict[UUID | None, list[int]] = {}
    for offset, key in keys:
        found.setdefault(None if key is None else key_hash(key), []).append(offset)
    return sets_of(found)


def number_of(text: str | None, most: int) -> int | None:
    """Return the number that a header has as text: decimal digits, at most `most`. None for any other text.

    Any program may write the header, and Python does not parse a text of 5,000 digits.
    """
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None


def _decoded(content: bytes, *, whole: bool) -> str | None:
    """Decode UTF-8; None if it is not text. If it is not whole, its last character may be incomplete."""
    try:
        text = getincrementaldecoder("utf-8")().decode(content, final=whole)
    except UnicodeDecodeError:
        return None
    return None if any(_is_control(character) for character in text) else text


def _is_control(character: str) -> bool:
    return (character < " " and character not in "\t\r\n") or "\x7f" <= character <= "\x9f"
