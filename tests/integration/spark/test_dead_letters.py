"""A job writes its group's dead letters at its end where no service does; that fails no job, and hides no error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.results.runs import WrittenAtEnd
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.kafka.topics import Topics
from sharequeue.spark import RunReport, dead_letters, lease
from sharequeue.spark.run import run_rounds
from sharequeue.state.replicas import hear_replica
from tests.fixtures.deadletters import GROUP_CONFIGS, GivenUp, alter_configs
from tests.fixtures.pipelines import Holder, job_of

Make = Callable[..., GivenUp]


def rejecting(records: DataFrame) -> DataFrame:
    """Reject every second record."""
    kept = records.select("topic", "partition", "offset", "lease_id")
    return kept.withColumn("outcome", fn.expr("if(offset % 2 = 0, 'reject', 'accept')"))


def failing(records: DataFrame) -> DataFrame:
    raise ValueError("no such column")


@contextmanager
def a_service_that_writes(database: Database) -> Iterator[None]:
    """Have a replica at work that writes them, and goes on beating, however long the block takes."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(1):
            hear_replica(database, "replica", writes_letters=True)

    hear_replica(database, "replica", writes_letters=True)
    beating = threading.Thread(target=beat)
    beating.start()
    try:
        yield
    finally:
        stop.set()
        beating.join()


def silence(database: Database) -> None:
    """Let the replicas have been silent for too long."""
    database.rows(
        sa.text(
            "update sharequeue.service_replicas set heard_at = sharequeue.clock() - interval '16 s' returning 1"
        )
    )


@dataclass
class Job:
    """A group in a database that no service has seen, and its job."""

    case: GivenUp
    settings: Settings
    topics: Topics
    spark: SparkSession
    done: int = 0

    @property
    def holder(self) -> Holder:
        return Holder([SharePartition(self.case.group, self.case.topic, 0)])

    def produce(self, count: int) -> None:
        """Put records into the topic, every second of which will be rejected."""
        self.case.produce(count)
        offsets = range(self.done, self.done + count)
        self.case.expected.update((self.case.topic, 0, offset) for offset in offsets if offset % 2 == 0)
        self.done += count

    def run(self, handler: Callable[[DataFrame], DataFrame] = rejecting, **changes: Any) -> RunReport:
        case = self.case
        job = job_of(case.group, case.topic, handler, failed_share=1.0, **changes)
        return run_rounds(
            self.settings,
            job,
            membership=self.holder,
            state=case.state,
            topics=self.topics,
            spark=self.spark,
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write the group's dead letters in a thread, as the service does."""
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(0.5):
                self.case.writer().write()

        at_work = threading.Thread(target=write)
        at_work.start()
        try:
            yield
        finally:
            stop.set()
            at_work.join()
            self.case.writer().write()

    def write(self) -> WrittenAtEnd | None:
        """Do what the end of a run does."""
        return dead_letters.write_letters_at_end(self.settings, self.case.state, self.case.configure())

    @property
    def waiting(self) -> int:
        return sum(status.archiving for status in self.case.state.figures.describe(self.case.group))


@pytest.fixture
def job(
    given_up: Make,
    private_database: Database,
    output_settings: Settings,
    topics: Topics,
    spark: SparkSession,
) -> Job:
    """Give the job of a group of one partition, with a dead-letter topic."""
    case = replace(given_up(), database=private_database)
    ensure_group(private_database, case.group)
    case.configure(
        **{name.replace(".", "_"): value for name, value in GROUP_CONFIGS.items()},
        errors_deadletterqueue_topic_name=case.dead_letter_topic,
    )
    topic_id = topics.describe([case.topic])[case.topic].topic_id
    case.state.initialize(SharePartition(case.group, case.topic, 0), topic_id, 0, 1)
    url = private_database.engine.url.render_as_string(hide_password=False)
    return Job(case, output_settings.replace(database_url=url), topics, spark)


def test_a_run_writes_dead_letters_if_no_service_does(job: Job) -> None:
    """Beside a service that writes, the run leaves them; when that one is silent for 15 s, the next run writes them,
    each once, also a run that fails; then there is nothing to say."""
    job.produce(6)
    with a_service_that_writes(job.case.database):
        left = job.run()
    assert (left.rejected, left.dead_letters, job.waiting) == (3, None, 3)
    silence(job.case.database)
    hear_replica(job.case.database, "another, which leaves them to jobs")
    with pytest.raises(ValueError, match="no such column"):
        job.run(failing, try_empty=True)
    assert job.waiting == 0
    job.produce(4)
    report = job.run()
    assert report.dead_letters is not None
    assert (report.dead_letters.written, report.dead_letters.left, report.dead_letters.warning) == (
        2,
        0,
        None,
    )
    assert report.lag == 0  # as the letters left it
    assert job.run().dead_letters is None
    job.case.assert_each_exactly_once()


def test_dead_letters_that_fill_the_window_do_not_end_a_run(job: Job) -> None:
    """One run processes all records, although the window has room for a hundred and its first record is rejected."""
    job.case.configure(share_partition_max_record_locks="100")
    job.produce(250)
    report = job.run()
    assert report.dead_letters is not None
    assert (report.lag, report.drained, report.remark) == (0, True, None)
    assert (report.dead_letters.written, report.dead_letters.left) == (125, 0)
    job.case.assert_each_exactly_once()


def test_a_run_waits_for_the_service_to_write_what_fills_the_window(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on once the service has written them. It ends with the reason where the service writes nothing."""
    job.case.configure(share_partition_max_record_locks="100")
    job.produce(150)
    with a_service_that_writes(job.case.database), monkeypatch.context() as impatient:
        impatient.setattr(dead_letters, "SERVICE_SECONDS", 0.0)
        held = job.run()
        assert (held.accepted, held.lag) == (50, 100)
        assert "the window is full (100 records) behind offset 0" in (held.remark or "")
    with a_service_that_writes(job.case.database), job.writing():
        report = job.run()
    assert (report.accepted, report.dead_letters) == (25, None)
    job.case.assert_each_exactly_once()


def test_a_lease_writes_dead_letters_at_its_end(job: Job) -> None:
    """At the end of `lease`, also of one that failed, and nothing was leased."""
    job.produce(6)
    case = job.case
    given: dict[str, Any] = {"settings": job.settings, "spark": job.spark, "membership": job.holder}
    with lease(case.group, [case.topic], **given) as leased:
        output = f"{job.settings.output}/block"
        rejecting(leased.records).write.parquet(output)
        leased.acknowledge(output)
        assert leased.dead_letters is None
        assert job.waiting == 3
    assert leased.dead_letters is not None
    assert (leased.dead_letters.written, job.waiting) == (3, 0)
    case.assert_each_exactly_once()
    job.produce(2)
    case.reject()
    case.expected.clear()
    with pytest.raises(KeyError), lease(case.group, [case.topic], **given) as leased:
        raise KeyError("mine")
    assert leased.dead_letters is not None
    assert (leased.dead_letters.written, job.waiting) == (2, 0)


def test_a_run_reports_letters_that_the_service_cannot_write(job: Job) -> None:
    """The topic takes none: nobody writes the letters until somebody acts, and the run says so, also before the
    service has tried; a block of `lease` says it too."""
    job.case.configure(errors_deadletterqueue_topic_name=job.case.topic)
    job.produce(6)
    given: dict[str, Any] = {"settings": job.settings, "spark": job.spark, "membership": job.holder}
    with a_service_that_writes(job.case.database):
        remark = str(job.run().remark)
        with lease(job.case.group, [job.case.topic], **given) as leased:
            assert "3 dead letters are held until an operator acts" in str(leased.why_nothing)
    assert remark.startswith(
        f"3 dead letters are held until an operator acts: `{job.case.topic}` does not begin with"
    )
    assert "set `errors.deadletterqueue.topic.name`" in remark
    assert "on the way" not in remark
    job.case.configure(errors_deadletterqueue_topic_name=job.case.dead_letter_topic)
    with a_service_that_writes(job.case.database):
        assert job.run().remark == "on the way to the dead-letter topic: 3 records"


def test_records_given_up_without_a_dead_letter_topic_are_a_remark(job: Job) -> None:
    """They are among the exceptions, and in no topic; the run says how to change that, and a run without any
    nothing."""
    alter_group_configs(job.case.database, job.case.group, {"errors.deadletterqueue.topic.name": None})
    job.produce(6)
    report = job.run()
    assert (report.rejected, report.drained) == (3, True)
    assert str(report.remark).startswith(
        f"3 records were given up, and group {job.case.group} has no dead-letter topic"
    )
    assert job.run().remark is None


def test_unwritten_dead_letters_are_a_warning(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that takes none, a writer that takes too long, one that fails: the run is well, and names what is left;
    the run's own error stays its error."""
    alter_configs(
        job.settings,
        ResourceType.TOPIC,
        job.case.dead_letter_topic,
        errors_deadletterqueue_group_enable="false",
    )
    job.produce(6)
    report = job.run()
    assert (report.rejected, report.drained) == (3, True)
    assert report.dead_letters is not None
    assert (report.dead_letters.written, report.dead_letters.left) == (0, 3)
    warning = report.dead_letters.warning
    assert warning is not None
    assert f"3 dead letters of group {job.case.group} are held until an operator acts" in warning
    assert report.remark is None
    assert "errors.deadletterqueue.group.enable" in warning
    assert "sharequeue dlq write --group" in warning
    assert "took longer" not in warning
    with pytest.raises(ValueError, match="no such column"):
        job.run(failing, try_empty=True)

    opted_in = {"errors_deadletterqueue_group_enable": "true"}
    alter_configs(job.settings, ResourceType.TOPIC, job.case.dead_letter_topic, **opted_in)
    with monkeypatch.context() as patched:
        patched.setattr(dead_letters, "BATCH_RECORDS", 2)
        patched.setattr(dead_letters, "WRITE_SECONDS", 0.0)
        slow = job.write()
    assert slow is not None
    assert (slow.written, slow.left) == (2, 1)
    assert "took longer than 0 s" in str(slow.warning)

    def broken(*arguments: object, **bounds: object) -> None:
        raise OSError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(dead_letters, "DeadLetterWriter", broken)
        failed = job.write()
    assert failed is not None
    assert "the database is away" in str(failed.warning)
    assert job.waiting == 1
    last = job.write()
    assert last is not None
    assert (last.written, last.warning) == (1, None)
    job.case.assert_each_exactly_once()
