"""A Spark job under the roles of `docs/howto/roles-and-acls.md`: a login that is worker and reader, and no more.

The service, whose role keeps groups and configs, has prepared the group.
"""

from __future__ import annotations

import uuid

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from orchestration.demo.queue import QUEUE
from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.settings import RoleNames, Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.reports.history import Reports
from sharequeue.spark import lease
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from sharequeue.state.journal import Journal
from tests.fixtures.pipelines import Holder, Produce, job_of
from tests.fixtures.stack import MakeTopic
from tests.reported import reported_lags


@pytest.fixture
def urls(private_database: Database) -> dict[str, str]:
    """Give the addresses of a login for the service, and of one for a job."""
    suffix = uuid.uuid4().hex[:8]
    names = RoleNames(*(f"{purpose} {suffix}" for purpose in RoleNames._fields))
    migrate(private_database, roles=names)
    given = {"service": [names.service], "job": [names.worker, names.reader]}
    found = {}
    for purpose, roles in given.items():
        login = f"{purpose}_{suffix}"
        quoted = ", ".join(f'"{role}"' for role in roles)
        with private_database.transaction() as connection:
            connection.exec_driver_sql(f"create role {login} login password 'secret' in role {quoted}")
        url = private_database.engine.url.set(username=login, password="secret")
        found[purpose] = url.render_as_string(hide_password=False)
    return found


def test_a_job_works_as_worker_and_reader(
    urls: dict[str, str],
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    output_settings: Settings,
    topics: Topics,
    spark: SparkSession,
) -> None:
    """All that the demo's run does: rounds, a block of `lease`, what counts, the sweeps, dead letters, reports, the
    checks; and a run finds the configs that the service has set, which it may not change."""
    topic = make_topic(1)
    letters = f"dlq.{topic}"
    topics.create(letters, 1, {"errors.deadletterqueue.group.enable": "true"})
    produce(topic, 0, range(30))
    at = SharePartition(group, topic, 0)
    with Database(urls["service"]) as service:
        alter_group_configs(service, group, {"share.auto.offset.reset": "earliest"})
        alter_group_configs(service, group, {"errors.deadletterqueue.topic.name": letters})
        QUEUE.configure(service)
        State(service).initialize(at, topics.describe([topic])[topic].topic_id, 0, 1)

    def handler(records: DataFrame) -> DataFrame:
        kept = records.select("topic", "partition", "offset", "lease_id")
        return kept.withColumn("outcome", fn.expr("if(offset % 10 = 0, 'reject', 'accept')"))

    job = job_of(group, topic, handler)
    settings = output_settings.replace(database_url=urls["job"])
    holder = Holder([at])
    with Database.open(settings) as database:
        state = State(database)
        assert QUEUE.configure(database).own
        report = run_rounds(
            settings, job, membership=holder, state=state, topics=topics, spark=spark, max_records=20
        )
        assert (report.accepted, report.rejected, report.drained) == (27, 3, True)
        assert report.dead_letters is not None
        assert (report.dead_letters.written, report.dead_letters.warning) == (3, None)
        with lease(group, [topic], settings=settings, spark=spark, membership=holder) as leased:
            assert not leased
        assert read_output(spark, state, group, job.sink).count() == 27
        state.sweep()
        assert sweep_outputs(spark, settings, state, job) == []
        configs = GroupConfigs.load(database, group)
        assert configs.dead_letter_topic == letters
        assert DeadLetterWriter(settings, state, group, configs).write().written == 0
        Reports(database).record(group)
        assert reported_lags(database, group) == [0]
        assert Journal(database).days(group) == []
        assert state.figures.verify(group) == []
        assert sum(each.records for each in state.figures.delivery_counts(group)) == 30
        assert sum(run.offsets.count for run in state.dead_letters.written(group)) == 3
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            alter_group_configs(database, group, {"share.delivery.count.limit": "3"})
