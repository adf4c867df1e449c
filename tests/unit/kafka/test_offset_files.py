"""A file of start offsets, as Kafka's tools export them: read whole, or refused with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharequeue.domain.errors import InvalidRequest
from sharequeue.kafka.offset_resets import read_offsets


def test_lines_are_read(tmp_path: Path) -> None:
    """With the quotes and blanks that tools put there."""
    path = tmp_path / "f"
    path.write_text('orders,0,5\n\n "orders" , 1 , 6\n"clicks",0,0')
    assert read_offsets(path) == {("orders", 0): 5, ("orders", 1): 6, ("clicks", 0): 0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"t,0,5\nt,1,5\n\nt,0,9\n",
            ", line 4: partition 0 of topic 't' is named twice, first in line 1: give it",
        ),
        (b"", " has no line: expected lines of topic,partition,offset."),
        (b"\n\n", " has no line: expected lines of topic,partition,offset."),
        (b"t,0,5\nt,0\n", ", line 2: expected topic,partition,offset, not 't,0'."),
        (b"t,0,abc\n", ", line 1: expected topic,partition,offset, not 't,0,abc'."),
        (b"t,0,5\0\n", ", line 1: expected topic,partition,offset, not "),
        (
            b"t,0,5\n\xff\xfe,0,1\n",
            ", line 2: byte 0xff is not UTF-8: expected lines of topic,partition,offset",
        ),
        (b"t,0," + b"9" * 200_000, ", line 1: expected topic,partition,offset, "),
    ],
)
def test_another_file_is_refused_with_the_line(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest) as refused:
        read_offsets(path)
    assert str(refused.value).startswith(f"{path}{said}")
    assert len(str(refused.value)) < 400
