"""A text file of the user's that cannot be read: its name, what is wrong with it, and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharequeue.domain.names import finite
from sharequeue.kafka.text_files import TextUnreadable, read_text


def test_a_text_has_no_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows write one, and their own line ends."""
    path = tmp_path / "f"
    path.write_bytes("\ufefforders,0,5\r\nflüge,1,6\r\n".encode())
    assert read_text(path, "lines") == "orders,0,5\nflüge,1,6\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe,0,1\n", "f, line 1: byte 0xff is not UTF-8: expected lines of x, as text in UTF-8."),
        (b"a\nb\nfl\xfcge", "f, line 3: byte 0xfc is not UTF-8: expected lines of x, as text in UTF-8."),
    ],
)
def test_a_file_in_another_encoding_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(TextUnreadable) as refused:
        read_text(path, "lines of x")
    assert str(refused.value) == f"{tmp_path}/{said}"


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(TextUnreadable) as refused:
            read_text(path, "lines of x")
        assert str(refused.value) == f"{path} cannot be read ({why}): expected lines of x."


@pytest.mark.parametrize("given", [float("nan"), float("inf"), float("-inf"), -1, -0.5])
def test_a_number_that_is_not_finite_is_refused(given: float) -> None:
    """NaN is neither less nor more than a bound."""
    with pytest.raises(ValueError, match=r"max_seconds is .*: expected a finite number, 0 or more"):
        finite("max_seconds", given)
    assert finite("max_seconds", 0.0) == 0.0
    with pytest.raises(TypeError, match="of type str: expected a finite number"):
        finite("max_seconds", "1")
