"""A broker that dies while a run reads: its partitions lose their leader, and no record a delivery."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession

from sharequeue.database import Database
from sharequeue.domain.errors import BrokerNotAvailable, LeaderNotAvailable
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import LogOffsets, Topics
from sharequeue.spark.run import run_rounds
from sharequeue.state import State
from tests.fixtures.pipelines import Holder, all_accepted, job_of
from tests.fixtures.stack import jars_folder
from tests.servers.own_brokers import own_broker
from tests.waiting import wait_until

RECORDS = 1_000


@pytest.mark.parametrize(
    "timestamp", [1_700_000_000_000, 1_700_000_000_000_000_000], ids=["scan", "by offset"]
)
def test_a_broker_lost_during_a_round_does_not_end_the_run(
    timestamp: int, private_database: Database, settings: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    """The run accepts the records of the other broker, and names the partition. The next one leaves it out at once:
    no client waits for its leader."""
    jars = jars_folder() / "broker"
    with own_broker(tmp_path / "a", jars) as here, own_broker(tmp_path / "b", jars, beside=here) as dying:
        there = settings.replace(
            bootstrap_servers=here.address(),
            database_url=private_database.engine.url.render_as_string(hide_password=False),
            output=tmp_path / "output",
        )
        admin = AdminClient({"bootstrap.servers": here.address()})
        for made in admin.create_topics(
            [
                NewTopic(
                    "t",
                    num_partitions=2,
                    replica_assignment=[[1], [2]],
                    config={"message.timestamp.after.max.ms": str(2**63 - 1)},
                )
            ]
        ).values():
            made.result()
        producer = Producer({"bootstrap.servers": here.address()})
        for number in range(2 * RECORDS):
            producer.produce("t", str(number), partition=number % 2, timestamp=timestamp)
        assert producer.flush(30) == 0
        with Topics(there) as topics:
            state, group = State(private_database), "g"
            with private_database.transaction() as connection:
                connection.execute(sa.text("insert into sharequeue.share_groups (group_id) values ('g')"))
            assigned = [SharePartition(group, "t", partition) for partition in range(2)]
            for at in assigned:
                state.initialize(at, topics.info("t").topic_id, 0, 1)

            def killing(records: DataFrame) -> DataFrame:
                if dying.process.poll() is None:
                    dying.process.kill()
                    dying.process.wait()
                return all_accepted(records)

            def run() -> tuple[object, ...]:
                given = {"state": state, "topics": topics, "spark": spark, "membership": Holder(assigned)}
                job = job_of(group, "t", killing)
                report = run_rounds(there, job, **given)  # type: ignore[arg-type]
                assert report.remark is not None
                assert "t-1 has no leader" in report.remark
                return report.accepted, report.drained, report.leaderless

            assert run() == (RECORDS, False, ("t-1",))
            one, other = state.figures.describe(group)
            assert (one.spso, one.lag) == (RECORDS, 0)
            assert (other.available, other.highest_delivery_count) == (RECORDS, 0)
            assert 1 in topics.info("t").leaderless
            began = time.monotonic()
            assert run() == (0, False, ("t-1",))
            assert time.monotonic() - began < 10, "a client has waited for the leader"
            assert topics.offsets("t", patience=0) == {0: LogOffsets(0, RECORDS, RECORDS)}


def test_a_topic_without_leaders_is_named(tmp_path: Path) -> None:
    """Its offsets are an error that says so, not that no broker answers."""
    jars = jars_folder() / "broker"
    with own_broker(tmp_path / "a", jars) as here, own_broker(tmp_path / "b", jars, beside=here) as dying:
        admin = AdminClient({"bootstrap.servers": here.address()})
        for made in admin.create_topics([NewTopic("t", num_partitions=1, replica_assignment=[[2]])]).values():
            made.result()
        with Topics(Settings({"bootstrap_servers": here.address()})) as topics:
            wait_until(lambda: not topics.info("t").leaderless, 30)
            dying.process.kill()

            def lost() -> bool:
                # A request that was on its way to the dead broker is an error.
                with suppress(BrokerNotAvailable):
                    return bool(topics.info("t").leaderless)
                return False

            wait_until(lost, 60)
            with pytest.raises(LeaderNotAvailable, match="No partition of topic 't' has a leader"):
                topics.offsets("t", patience=0)
