"""`sharequeue dlq export`: dead letters as lines of JSON, for a program or a ticket."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.words.record_bytes import text_of


def write_letters(letters: Iterable[DeadLetter], to: TextIO, *, as_base64: bool) -> int:
    """Write each letter as one JSON object per line; return the number of letters."""
    written = 0
    for letter in letters:
        to.write(json.dumps(letter_object(letter, as_base64=as_base64), ensure_ascii=False) + "\n")
        written += 1
    return written


def letter_object(letter: DeadLetter, *, as_base64: bool) -> dict[str, Any]:
    """Return all data of a letter. Bytes are text, with escapes if they are not UTF-8, or base64."""

    def content(given: bytes | None) -> str | None:
        return b64encode(given).decode() if as_base64 and given is not None else text_of(given, escaped=True)

    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "written_at": letter.timestamp and round(letter.timestamp.timestamp() * 1000),
        "group": letter.group,
        "source_topic": letter.source_topic,
        "source_partition": letter.source_partition,
        "source_offset": letter.source_offset,
        "deliveries": letter.delivery_count,
        "cause": letter.cause,
        "exception_class": letter.exception_class,
        "exception_message": letter.exception_message,
        "key": content(letter.key),
        "value": content(letter.value),
        "headers": [[name, content(value)] for name, value in letter.headers],
    }


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Open the file to write, and remove it if the block fails, because an incomplete file looks complete.

    Raises BadParameter if the file exists: nothing is overwritten.
    """
    try:
        to = path.open("x", encoding="utf-8")
    except FileExistsError:
        raise click.BadParameter(
            f"{path} exists, and is not overwritten: give another file", param_hint="--file"
        ) from None
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--file") from error
    try:
        with to:
            yield to
    except BaseException:
        path.unlink(missing_ok=True)
        raise
