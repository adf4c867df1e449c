"""The Spark jobs of a run: cancel them, find out whether a task has run, clear their cache."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain import traces
from sharequeue.spark.handler import unlogged
from sharequeue.spark.session import JarsDoNotFit, SparkNotReady
from sharequeue.spark.signals import forget_interrupted_call, interruptible

_log = logging.getLogger(__name__)

TRACE_TAG = "traceparent-"
"""The beginning of a tag of a run's Spark jobs; the run's trace follows it."""

JVM_GONE = (Py4JError, ConnectionError)
"""The errors of a call to a JVM that has ended. A JVM that runs may also raise Py4JError."""

MOST_CAUSES = 10
_NOT_LINKED = re.compile(
    r"java\.lang\.(?:NoSuchMethod|NoSuchField|NoClassDefFound|AbstractMethod|IncompatibleClassChange|"
    r"UnsupportedClassVersion|IllegalAccess|Verify)Error[^\n]*"
)


def session_lives(spark: SparkSession) -> bool:
    """Return whether the session's context can still run jobs."""
    context = spark.sparkContext
    try:
        return context._jsc is not None and not context._jsc.sc().isStopped()
    except JVM_GONE:
        return False


def missing_in_jars(error: BaseException) -> str | None:
    """Return the JVM's error if a class or method is missing that a jar was compiled with, else None."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    texts = [str(error)]
    try:
        for _ in range(MOST_CAUSES):
            if java is None:
                break
            texts.append(str(java.toString()))
            java = java.getCause()
    except JVM_GONE:
        pass  # what is known is enough
    found = (_NOT_LINKED.search(text) for text in texts)
    return next((each[0].strip() for each in found if each), None)


@contextmanager
def ended_session_is_named(spark: SparkSession, whose: str) -> Iterator[None]:
    """Raise SparkNotReady in place of an error of Spark that the block raised because the session has ended, and
    JarsDoNotFit because its jars do not fit together: time cures neither.
    """
    try:
        with unlogged():
            yield
    except (PySparkException, *JVM_GONE) as error:
        if session_lives(spark):
            if (missing := missing_in_jars(error)) is None:
                raise
            raise JarsDoNotFit(
                f"the jars of the Spark session of {whose} do not fit together ({missing}): one was made for another "
                f"version of Spark (this is {spark.version}) or of another jar. Use the sets of `sharequeue jars "
                "fetch`, or the versions that the makers of your jars name. Leased records are given back."
            ) from error
        raise SparkNotReady(
            f"the Spark session of {whose} has ended during its work, and cannot be created again in this process: "
            "its JVM was stopped, killed or out of memory. Start it again. Leased records are given back, or "
            "delivered again when their locks have lapsed."
        ) from error


class Jobs:
    """The Spark jobs of a block, marked by a tag."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self.tag = f"sharequeue-{uuid.uuid4().hex[:12]}"

    def cancel(self) -> None:
        """Cancel the jobs, from any thread; retry if an interrupt has broken the connection to the JVM. Never
        raises.
        """
        for _ in range(2):
            try:
                self._context.cancelJobsWithTag(self.tag)
            except Exception as error:
                _log.warning("Spark's jobs were not cancelled: %s", error)
                forget_interrupted_call()
            else:
                return

    @contextmanager
    def of_round(self, number: int) -> Iterator[None]:
        """Mark the jobs of this block as those of a round, also in threads that inherit the tags of this thread."""
        tag = self._tag_of(number)
        self._context.addJobTag(tag)
        try:
            yield
        except Exception:
            self._context.removeJobTag(tag)
            raise
        # Not after an interrupt: the connection to the JVM may be broken then, and the thread with the tag has ended.
        self._context.removeJobTag(tag)

    def tasks_ran(self, number: int) -> bool:
        """Return whether a task of a round has run: only then can a record have caused a failure."""
        try:
            tracker = self._tracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(self._tag_of(number))]
            stages = [stage for job in jobs if job.isDefined() for stage in job.get().stageIds()]
            infos = [tracker.getStageInfo(stage) for stage in stages]
        except Py4JError:
            return True  # the JVM can no longer be asked
        return any(
            info.get().numActiveTasks() + info.get().numCompletedTasks() + info.get().numFailedTasks()
            for info in infos
            if info.isDefined()
        )

    def _tag_of(self, number: int) -> str:
        return f"{self.tag}-{number}"

    def _tracker(self) -> Any:
        context: Any = self._context._jsc.sc()
        # The tracker is updated by events, shortly after a job starts.
        context.listenerBus().waitUntilEmpty()
        return context.statusTracker()


@contextmanager
def cancellable(spark: SparkSession) -> Iterator[Jobs]:
    """Yield the Spark jobs of this block, so that another thread can cancel them. A signal ends the block with an
    exception.
    """
    context, trace = spark.sparkContext, traces.current()
    jobs = Jobs(context)
    tags = [jobs.tag, *([TRACE_TAG + trace] if trace is not None else [])]
    for tag in tags:
        context.addJobTag(tag)
    context.setInterruptOnCancel(True)
    try:
        with interruptible():
            yield jobs
    finally:
        # After an interrupt the connection to the JVM may be broken, and the thread with the tags has ended.
        with suppress(*JVM_GONE):
            for tag in tags:
                context.removeJobTag(tag)


def uncache(records: DataFrame) -> None:
    """Remove from Spark's cache every DataFrame that a handler has cached and that is computed from these records."""
    session: Any = records.sparkSession._jsparkSession
    manager = session.sharedState().cacheManager()
    if not manager.isEmpty():
        manager.uncacheQuery(session, records._jdf.queryExecution().analyzed(), True, False)
