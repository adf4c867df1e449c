"""The bytes of keys, values and headers, formatted for people."""

from sharequeue.domain.record_bytes import MOST_HEXADECIMAL, key_hash, text_of


def test_bytes_are_text_or_hexadecimal_and_a_cut_is_marked() -> None:
    """UTF-8 is text, also if its last character was cut; everything else is hexadecimal, or text with escapes."""
    assert text_of(None) is None
    assert text_of(b"") == ""
    assert text_of("Zürich\u00a0\r\n".encode()) == "Zürich\u00a0\r\n"
    assert text_of(b"a" * 200, most=200) == "a" * 200
    assert text_of(b"a" * 199 + "ü".encode(), most=200) == "a" * 199 + "…"
    assert text_of(b"a" * 199 + "ü".encode()[:1], size=201) == "a" * 199 + "…"
    assert text_of("ü".encode()[:1]) == "0xc3"
    assert text_of(b"\xff\x00") == "0xff00"
    assert text_of(b"\xff\x00", most=1) == "0xff…"
    for control in ("a\x00", "\x1b[1m", "\x7f", "\x9b"):
        assert text_of(control.encode()) == f"0x{control.encode().hex()}"
    assert text_of(b"\xff" * (MOST_HEXADECIMAL + 1)) == "0x" + "ff" * MOST_HEXADECIMAL + "…"
    assert text_of(b"\xff\x00a", escaped=True) == "\\xff\x00a"


def test_the_hash_of_a_key_is_its_md5() -> None:
    """Written like Spark's and Postgres's `md5`; an empty key is a key."""
    assert key_hash(b"a").hex == "0cc175b9c0f1b6a831c399e269772661"
    assert key_hash(b"").hex == "d41d8cd98f00b204e9800998ecf8427e"
