"""What a dead letter tells of its attempts: exceptions taken apart, files read once, the last attempt's reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sharequeue.deadletters import attempts as deadletter_attempts
from sharequeue.deadletters.attempts import (
    FIRST_ATTEMPT,
    LAST_ATTEMPT,
    MEMBER,
    MOST_MESSAGE_BYTES,
    RUN,
    Explanations,
    exception_headers,
    read_errors,
    without_explanation,
)
from sharequeue.deadletters.letters import (
    EXCEPTION_CLASS,
    EXCEPTION_MESSAGE,
    EXCEPTION_UNREADABLE,
    OFFSET,
    DeadLetter,
)
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import Attempt

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def attempt(number: int, offsets: OffsetSet, exceptions: Path | None = None, client: str = "") -> Attempt:
    """The attempt of member `m<number>`, so many minutes past noon."""
    at = NOON + timedelta(minutes=number)
    return Attempt(number, f"m{number}", client, at, offsets, None if exceptions is None else str(exceptions))


def write_errors(folder: Path, errors: dict[int, str | None]) -> Path:
    """What a run writes of its exceptions, in two files, as Spark does; columns of the handler's own among them."""
    folder.mkdir()
    rows = [
        {"topic": "t", "partition": 0, "offset": offset, "tail": "N1", "outcome": "reject", "error": error}
        for offset, error in errors.items()
    ]
    for part, some in enumerate((rows[::2], rows[1::2])):
        if some:
            pq.write_table(pa.Table.from_pylist(some), folder / f"part-{part}.parquet")
    (folder / "_SUCCESS").touch()
    return folder


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        ("ValueError: no tail number", "ValueError", "no tail number"),
        ("json.decoder.JSONDecodeError: line 1\nline 2", "json.decoder.JSONDecodeError", "line 1\nline 2"),
        ("KeyError", "KeyError", None),
        ("_Private: x", "_Private", "x"),
        ("not a flight: no tail", None, "not a flight: no tail"),
        ("missing: tail", None, "missing: tail"),
        ("", None, None),
    ],
)
def test_an_error_is_class_and_message(error: str, name: str | None, message: str | None) -> None:
    """What `by_row` writes is taken apart; any other text is a message, and never half of one."""
    told = DeadLetter(0, 0, None, None, exception_headers(error), None)
    assert (told.header(EXCEPTION_CLASS), told.header(EXCEPTION_MESSAGE)) == (name, message)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("urllib.HTTPError: https://user:secret@host answered 403", "urllib.HTTPError"),
        ("KeyError: 'tail'\nSecret: secret", "KeyError"),
        ("KeyError", "KeyError"),
        ("not a flight: secret", None),
    ],
)
def test_without_messages_the_class_alone_is_told(error: str, name: str | None) -> None:
    """Nothing of a message is in the headers, and nothing of an error that has no class."""
    headers = exception_headers(error, messages=False)
    assert headers == (((EXCEPTION_CLASS, name.encode()),) if name else ())


def test_a_long_message_is_cut_between_characters() -> None:
    """A message may quote a whole record; what is left of it is readable text."""
    ((name, cut),) = exception_headers("zu groß: " + "ü" * 5_000)
    assert (name, len(cut or b"")) == (EXCEPTION_MESSAGE, MOST_MESSAGE_BYTES)
    assert (cut or b"").decode().endswith("ü")
    ((_, cut),) = exception_headers("x " + "€" * 5_000)
    assert len(cut or b"") == MOST_MESSAGE_BYTES - 2


@pytest.mark.parametrize("messages", [False, True])
def test_a_long_word_is_no_class(messages: bool) -> None:
    """A megabyte of capitals looks like a class: it is a message, which is cut, and may be left out."""
    headers = exception_headers("X" * 1_100_000, messages=messages)
    assert [(name, len(value or b"")) for name, value in headers] == [
        (EXCEPTION_MESSAGE, MOST_MESSAGE_BYTES)
    ] * messages
    assert exception_headers("K" * 250 + ": " + "x" * 2_000)[1] == (EXCEPTION_MESSAGE, b"x" * 1_000)


def test_each_record_tells_its_first_and_last_attempt(tmp_path: Path) -> None:
    """Times of the first and the last, run and member of the last, and what the last one's handler said."""
    old = write_errors(tmp_path / "lease=1", {3: "ValueError: old", 4: "ValueError: old", 9: None})
    new = write_errors(tmp_path / "lease=2", {3: "KeyError: 'tail'", 5: "KeyError: 'tail'"})
    tell = Explanations().of(
        [
            attempt(1, OffsetSet.of((3, 5), (9, 10)), old, client="dagster-run-a"),
            attempt(2, OffsetSet.of((3, 4), (5, 6)), new, client="dagster-run-b"),
            attempt(3, OffsetSet.of((5, 6))),
        ]
    )

    def told(offset: int) -> dict[str, bytes | None]:
        return dict(tell(offset))

    def milliseconds(minutes: int) -> bytes:
        return b"%d" % ((NOON + timedelta(minutes=minutes)).timestamp() * 1000)

    assert told(3) == {
        EXCEPTION_CLASS: b"KeyError",
        EXCEPTION_MESSAGE: b"'tail'",
        FIRST_ATTEMPT: milliseconds(1),
        LAST_ATTEMPT: milliseconds(2),
        RUN: b"dagster-run-b",
        MEMBER: b"m2",
    }
    assert told(4)[EXCEPTION_MESSAGE] == b"old"
    # Its last attempt was never acknowledged, by a member that was gone: no reason is better than a wrong one.
    assert told(5) == {
        FIRST_ATTEMPT: milliseconds(2),
        LAST_ATTEMPT: milliseconds(3),
        RUN: b"m3",
        MEMBER: b"m3",
    }
    assert EXCEPTION_CLASS not in told(9)
    assert tell(77) == ()


def test_a_file_serves_all_batches_of_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease with 1,000 exceptions that die in ten batches is read once, and forgotten behind the last of them."""
    folder = write_errors(tmp_path / "lease=1", dict.fromkeys(range(1000), "ValueError: x"))
    read: list[str] = []

    def counted(location: str) -> pa.Table | None:
        read.append(location)
        return read_errors(location)

    monkeypatch.setattr(deadletter_attempts, "read_errors", counted)
    explanations = Explanations()
    for first in range(0, 1000, 100):
        tell = explanations.of([attempt(1, OffsetSet.of((first, first + 100)), folder)])
        assert all(
            dict(tell(offset))[EXCEPTION_CLASS] == b"ValueError" for offset in range(first, first + 100)
        )
    assert read == [str(folder)]
    explanations.of([attempt(2, OffsetSet.of((2000, 2001)))])
    explanations.of([attempt(1, OffsetSet.of((0, 100)), folder)])(0)
    assert read == 2 * [str(folder)]


def test_files_that_are_gone_or_of_another_kind_hold_nothing_up(tmp_path: Path) -> None:
    """Swept, compacted, not mounted here, not written yet, or without our columns: times and names are there all the
    same, and where the error could not be read, the letter says so."""
    other = tmp_path / "lease=2"
    other.mkdir()
    pq.write_table(pa.table({"offset": [1]}), other / "part-0.parquet")
    (tmp_path / "lease=3").mkdir()
    (tmp_path / "lease=3" / "part-0.parquet").write_bytes(b"half a fi")
    (tmp_path / "lease=4").mkdir()
    table = read_errors(str(other))
    assert table is not None
    assert table.num_rows == 0
    for number in (1, 2, 3, 4):
        folder = tmp_path / f"lease={number}"
        (told,) = [dict(Explanations().of([attempt(1, OffsetSet.of((1, 2)), folder)])(1))]
        assert EXCEPTION_CLASS not in told
        assert told.get(EXCEPTION_UNREADABLE) == (None if number == 2 else b"true")
        assert told[MEMBER] == b"m1"


def test_a_location_may_be_a_uri(tmp_path: Path) -> None:
    """Hadoop's way to write a folder is understood."""
    folder = write_errors(tmp_path / "lease=1", {1: "KeyError: 1"})
    table = read_errors(f"file://{folder}")
    assert table is not None
    assert table["error"].to_pylist() == ["KeyError: 1"]


def test_the_explanation_can_be_left_out() -> None:
    """For a topic that takes no record so large: Kafka's headers and the copy's stay."""
    told = exception_headers("ValueError: x")
    assert without_explanation([(OFFSET, b"1"), *told, ("sharequeue.record.oversized", b"true")]) == [
        (OFFSET, b"1"),
        ("sharequeue.record.oversized", b"true"),
    ]
