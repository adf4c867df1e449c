"""Names that become folders: of any text, one part of a path that belongs to this text alone; and arguments."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from sharequeue.domain.names import folder_name, is_folder_name, whole_number

TEXTS = (
    *("flight-delays", "Ä ü", "a b", "a%20b", "a/b", "a%2Fb", "a\\b", "a:b", "a*b?", "a\nb", "a\0b"),
    *("..", ".", "...", "../..", "/etc", ".hidden", "%2Ehidden", "_x", "%5Fx", "~", "%7E", "-", "x" * 249),
    *("ü" * 249, "ü" * 248 + "a", "." * 249, "." * 248 + "a", "leases=1", "CON"),
)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_has_a_folder_name(text: str) -> None:
    """Kafka allows any text as a group's id. The name leads nowhere else, and Spark does not leave it out."""
    name = folder_name(text)
    assert (Path("/root") / name).resolve().parent == Path("/root")
    assert is_folder_name(name)
    assert name.isascii()
    assert len(name) <= 200
    assert len(name) > 180 or unquote(name) == text


def test_different_texts_have_different_names() -> None:
    """Also those that are cut."""
    assert len({folder_name(text) for text in TEXTS}) == len(TEXTS)


@pytest.mark.parametrize("name", ["", ".", "..", "_x", ".x", "a/b", "a\nb", "a\0b"])
def test_some_texts_are_no_names_as_they_are(name: str) -> None:
    """They are steps in a path, are left out by readers, or have characters that no name has."""
    assert not is_folder_name(name)


def test_a_whole_number_is_one_that_the_database_can_hold() -> None:
    """A number of NumPy is one, too."""
    assert whole_number("n", np.int64(2**63 - 1), 1) == 2**63 - 1
    for value, error, said in (
        (2**63, ValueError, "n is 9223372036854775808: expected at most 9,223,372,036,854,775,807"),
        (0, ValueError, "n is 0: expected a whole number, 1 or more"),
        (1.0, TypeError, "n is 1.0, of type float: expected a whole number, 1 or more"),
    ):
        with pytest.raises(error, match=said):
            whole_number("n", value, 1)
