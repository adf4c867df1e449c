"""Put the error of a Spark job into words: how a process died, or the user's own traceback, or Spark's message.

Spark's errors contain the stack of the JVM, often several times, and the stack of its Python worker: a hundred lines
for the five that a user needs. The command and Dagster show `in_words`; the whole error is for the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sharequeue.domain.errors import PipelineError, first_line

__all__ = [
    "SPARK_ERRORS",
    "WORKER_EXITED",
    "JobFailed",
    "cause_of",
    "for_user",
    "in_words",
    "killed_by",
    "lines_of",
]

SPARK_ERRORS = (PySparkException, Py4JError)
"""What a call to Spark raises if one of its jobs fails."""
WORKER_EXITED = "Python worker exited unexpectedly"
_KILLED = re.compile(rf"(?:{WORKER_EXITED}|ExecutorLostFailure)[^\n]*")
_ADVICE = ". Consider setting"
"""Spark's own advice follows: ours has it."""
_TRACEBACK = "Traceback (most recent call last):\n"
_OF_THE_JVM = re.compile(
    r"\s*(?:at [\w.$/<>]+\(|\.\.\. \d+ more|Suppressed: |Driver stacktrace|JVM stacktrace|Caused by: )"
)
_LOST_TASK = re.compile(r"Lost task .*?\): (.+)")
_CAUSED_BY = re.compile(r"^Caused by: (.+)", re.MULTILINE)
_NOT_THE_USERS = ("/pyspark/", "/pyspark.zip/", "/sharequeue/spark/")
"""Parts of the paths of files whose frames say nothing about the user's code."""
_FRAMES = 5
_LINES = 6
_CHARACTERS = 300


class JobFailed(PipelineError):
    """A Spark job failed, because of an exception of the handler or for a reason that Spark reports. The message has
    the records and the last lines of the handler's traceback. Records whose job had begun are delivered again.
    """

    retriable = True


def in_words(error: BaseException) -> JobFailed:
    """Return the error of a Spark job for its user, without the stack of the JVM. Notes on it are a part of it."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return JobFailed("\n".join([f"a Spark job failed: {cause_of(error)}{notes}", *lines_of(error)]))


def for_user(error: Exception) -> tuple[Exception, str]:
    """Return the error to show in place of one that is of Spark, or was caused by one, and Spark's whole text for the
    log; any other error as it is, and no text.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, SPARK_ERRORS):
        cause = cause.__cause__
    if cause is None:
        return error, ""
    return (in_words(cause) if cause is error else error), str(cause)


def killed_by(error: BaseException) -> str | None:
    """Return in a line how a process died, if that is why a Spark job failed; None for any other error."""
    found = _KILLED.search(str(error))
    return found[0].partition(_ADVICE)[0].strip()[:_CHARACTERS] if found else None


def cause_of(error: BaseException) -> str:
    """Return why a Spark job failed, in one line: how its process died, the handler's exception, or the first cause
    that Spark reports.
    """
    if killed := killed_by(error):
        return killed
    text = str(error)
    if traceback := _traceback(text):
        return _exception(traceback)[0]
    if found := _CAUSED_BY.findall(text) or _LOST_TASK.findall(text):
        return str(found[-1])
    _, _, java = text.partition("\n")
    # Py4J's own first line names only a call.
    return java.partition("\n")[0][1:].strip() if java.startswith(":") else first_line(error)


def lines_of(error: BaseException) -> list[str]:
    """Return more about the error of a Spark job: the last lines of the handler's traceback, or else what Spark
    reports, without stacks.
    """
    text, cause = str(error), cause_of(error)
    if killed_by(error) is None and (traceback := _traceback(text)):
        frames = [
            frame for frame in _frames(traceback) if not any(part in frame[0] for part in _NOT_THE_USERS)
        ]
        lines = [line for frame in frames[-_FRAMES:] for line in frame] + _exception(traceback)
        return _indented("The last lines of the handler's traceback:" if frames else "Python reports:", lines)
    lines = [line.strip() for line in text.splitlines() if not _OF_THE_JVM.match(line)]
    return _indented(
        "Spark reports:", list(dict.fromkeys(line for line in lines if line and line != cause))[:_LINES]
    )


def _indented(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"  {line[:_CHARACTERS]}" for line in lines)] if lines else []


def _traceback(text: str) -> list[str]:
    """Return the lines of the last traceback in a text, without what Java has added; empty if there is none."""
    _, found, rest = text.rpartition(_TRACEBACK)
    lines: list[str] = []
    for line in rest.splitlines() if found else ():
        if _OF_THE_JVM.match(line):
            break
        lines.append(line)
    return [line for line in lines if line.strip()]


def _frames(traceback: Iterable[str]) -> list[list[str]]:
    frames: list[list[str]] = []
    for line in traceback:
        if line.startswith("  File "):
            frames.append([line])
        elif line.startswith("  ") and frames:
            frames[-1].append(line)
        else:
            break
    return frames


def _exception(traceback: list[str]) -> list[str]:
    """Return the lines of a traceback's exception, whose message may have several."""
    first = next((at for at, line in enumerate(traceback) if not line.startswith(" ")), len(traceback) - 1)
    return [line[:_CHARACTERS] for line in traceback[first : first + _LINES]]
