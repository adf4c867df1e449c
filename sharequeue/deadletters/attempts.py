"""The headers of a dead letter about its failed attempts.

They contain what Kafka's dead letters do not have: class and message of the handler's exception, the times of the
first and the last attempt, and its run and member. The attempts are in Postgres, one row per failed lease
(``sql/functions/40_dead_letters/attempts.sql``). The error is in the Parquet files of the run's exceptions sink,
which the acknowledgement named as an output of its lease: so acknowledging costs nothing more, and only the errors of
archived records are read. If the files cannot be read, a header of the letter says so. An attempt that ended without
an acknowledgement has its reason in Postgres.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sharequeue.deadletters.letters import EXCEPTION_CLASS, EXCEPTION_MESSAGE, EXCEPTION_UNREADABLE
from sharequeue.domain.errors import first_line
from sharequeue.domain.values import Attempt
from sharequeue.kafka.headers import Header, Headers
from sharequeue.outputs.stores import filesystem_of

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_ATTEMPT = "sharequeue.attempt.first"
"""When the record was first delivered in an attempt that failed: milliseconds since the epoch."""
LAST_ATTEMPT = "sharequeue.attempt.last"
RUN = "sharequeue.run.id"
"""The client id of the last member that tried the record (Dagster's runs: `dagster-run-` and the run's id), else its
member id."""
MEMBER = "sharequeue.member.id"

MOST_MESSAGE_BYTES = 1_000
"""A message may quote the record; the record itself is in the letter only if the group's config asks for a copy."""
MOST_CLASS_CHARACTERS = 250
"""A longer text is not a class, even if it looks like one: it may be a whole record."""

_MOST_CHARACTERS = MOST_CLASS_CHARACTERS + len(": ") + MOST_MESSAGE_BYTES
_CLASS = re.compile(r"((?:\w+\.)*_*[A-Z]\w*)(?:: (.*))?", re.DOTALL)

_log = logging.getLogger(__name__)

HeadersOf = Callable[[int], Headers]
"""A function that returns the headers for an offset."""


_UNREADABLE: Headers = ((EXCEPTION_UNREADABLE, b"true"),)


def nothing(offset: int) -> Headers:
    """Return no headers, because no attempt is known."""
    return ()


def exception_headers(error: str, *, messages: bool = True) -> Headers:
    """Return the headers of a handler's `error`: "Class: message" as `by_row` writes it, or any other text, which is
    only a message; without `messages` only the class."""
    error = error[:_MOST_CHARACTERS]
    found = _CLASS.fullmatch(error)
    if found is None or len(found[1]) > MOST_CLASS_CHARACTERS:
        name, message = "", error
    else:
        name, message = found[1], found[2] or ""
    headers: list[Header] = [(EXCEPTION_CLASS, name.encode())] if name else []
    if message and messages:
        # Cut between characters: an incomplete one would make the header unreadable.
        cut = message.encode()[:MOST_MESSAGE_BYTES].decode(errors="ignore")
        headers.append((EXCEPTION_MESSAGE, cut.encode()))
    return tuple(headers)


class Explanations:
    """The headers for the records of one share-partition's batches, with or without the messages of exceptions. Each
    file of errors is read once for successive batches."""

    def __init__(self, *, messages: bool = True) -> None:
        self._messages = messages
        self._tables: dict[str, pa.Table | None] = {}

    def of(self, attempts: Sequence[Attempt]) -> HeadersOf:
        """Return a function from an offset of a batch to its headers, given the batch's attempts in order."""
        if not attempts:
            return nothing
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, attempt in enumerate(attempts):
            for bounds in attempt.offsets.ranges:
                last.update(dict.fromkeys(range(*bounds), number))
        for number, attempt in reversed(list(enumerate(attempts))):
            for bounds in attempt.offsets.ranges:
                first.update(dict.fromkeys(range(*bounds), number))
        # Only the last attempt's error is the reason.
        named = {a.exceptions for a in attempts if a.exceptions}
        self._tables = {location: table for location, table in self._tables.items() if location in named}
        errors = [self._errors(attempt) for attempt in attempts]
        reasons = [
            () if a.reason is None else exception_headers(a.reason, messages=self._messages) for a in attempts
        ]
        made: dict[tuple[int, int, Headers], Headers] = {}

        def explain(offset: int) -> Headers:
            number = last.get(offset)
            if number is None:
                return ()
            # Equal headers share one tuple: their letters differ only in the offset.
            found = errors[number]
            error = _UNREADABLE if found is None else found.get(offset, ())
            what = (first[offset], number, reasons[number] or error)
            headers = made.get(what)
            if headers is None:
                headers = made[what] = (*what[2], *attempt_headers(attempts[what[0]], attempts[number]))
            return headers

        return explain

    def _errors(self, attempt: Attempt) -> dict[int, Headers] | None:
        """Return the handler's errors by offset, as headers, which are created once per text; None if they cannot be
        read."""
        if attempt.exceptions is None:
            return {}
        if attempt.exceptions not in self._tables:
            self._tables[attempt.exceptions] = read_errors(attempt.exceptions)
        table = self._tables[attempt.exceptions]
        if table is None:
            return None
        return _headers_between(table, attempt.offsets.first, attempt.offsets.end, messages=self._messages)


def _headers_between(table: pa.Table, first: int, end: int, *, messages: bool) -> dict[int, Headers]:
    import pyarrow.compute as pc

    near = pc.and_(pc.greater_equal(table["offset"], first), pc.less(table["offset"], end))
    wanted = table.filter(near)
    texts = wanted["error"].combine_chunks().dictionary_encode()
    headers = [exception_headers(text, messages=messages) for text in texts.dictionary.to_pylist()]
    return {
        offset: headers[index]
        for offset, index in zip(wanted["offset"].to_pylist(), texts.indices.to_pylist(), strict=True)
        if index is not None
    }


def attempt_headers(first: Attempt, last: Attempt) -> Headers:
    """Return the headers with the times of the attempts and the last member."""
    return (
        (FIRST_ATTEMPT, _milliseconds(first)),
        (LAST_ATTEMPT, _milliseconds(last)),
        (RUN, (last.client_id or last.member_id).encode()),
        (MEMBER, last.member_id.encode()),
    )


def read_errors(location: str) -> pa.Table | None:
    """Return offsets and errors of an attempt's exceptions; None if the files are missing or cannot be read."""
    # Imported only here: these imports take longer than all others of the command line.
    import pyarrow as pa

    try:
        return _errors_in(location)
    except (OSError, pa.ArrowException, ValueError) as error:
        _log.warning("dead letters do not have the handler's error: %s cannot be read: %s", location, error)
        return None


def error_at(location: str, offset: int) -> str | None:
    """Return the error of one record of an attempt on one line, or that it cannot be read; None if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        table = _errors_in(location)
    except (OSError, pa.ArrowException, ValueError) as error:
        return f"(not known: {location} cannot be read: {first_line(error)})"
    found = [] if table is None else table.filter(pc.equal(table["offset"], offset))["error"].to_pylist()
    return " ".join(str(found[0]).split()) if found and found[0] is not None else None


def _errors_in(location: str) -> pa.Table | None:
    """Return offsets and errors of an attempt's exceptions; None for a folder without files."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    schema = pa.schema([("offset", pa.int64()), ("error", pa.string())])
    filesystem, path = filesystem_of(location)
    files = ds.dataset(path, format="parquet", filesystem=filesystem)
    if not files.files:
        # A consumer has yet to write there.
        return None
    if not {"offset", "error"} <= set(files.schema.names):
        return schema.empty_table()
    table = files.to_table(columns=["offset", "error"])
    return table.cast(schema)


def _milliseconds(attempt: Attempt) -> bytes:
    return b"%d" % round(attempt.acquired_at.timestamp() * 1000)


def without_explanation(headers: Iterable[Header]) -> list[Header]:
    """Return a letter's headers without those of this module, for a topic whose limit the letter would exceed."""
    explaining = (
        EXCEPTION_CLASS,
        EXCEPTION_MESSAGE,
        EXCEPTION_UNREADABLE,
        FIRST_ATTEMPT,
        LAST_ATTEMPT,
        RUN,
        MEMBER,
    )
    return [header for header in headers if header[0] not in explaining]
