"""Read a text file that the user has named.

All such files are UTF-8. Other files (another encoding, an archive, a key store) are refused with the name of the
file, the line, and the expected content.
"""

from __future__ import annotations

from pathlib import Path


class TextUnreadable(ValueError):
    """The file cannot be read as text. The message has the file, the problem, and the expected content."""


def read_text(path: Path, expected: str) -> str:
    """Return the text of a file, without a byte order mark. `expected` describes its content, for the message.

    Raises TextUnreadable.
    """
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise TextUnreadable(f"{path} cannot be read ({error.strerror}): expected {expected}.") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise TextUnreadable(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8: expected {expected}, as text "
            "in UTF-8."
        ) from error
