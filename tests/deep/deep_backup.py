"""A backup by pg_dump, restored beside a topic and a dead-letter topic that have moved on since.

As `docs/howto/backup.md` says: the dump, `adopt`, `verify`. Holders from before are refused; what was
done after the backup comes again, if the log still has it; what the log has lost is passed over.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from sharequeue.database import Database
from sharequeue.domain.errors import FencedStateEpoch
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.tokens import TokenRefused, Tokens, principal_of
from sharequeue.kafka.topics import Topics
from sharequeue.local import postgres
from sharequeue.local.stack import StackInfo
from sharequeue.state import State
from tests import single
from tests.deep.servers import sharequeue
from tests.fixtures.logs import delete_before
from tests.fixtures.stack import REPOSITORY, MakeTopic

GIVEN_UP = OffsetSet.of((45, 46))
ACCEPT, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT


def tool(name: str, url: sa.URL, *arguments: str) -> str:
    """Run one of Postgres's programs on a database."""
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    ran = subprocess.run(
        [postgres._binaries() / name, "-d", plain, *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def elsewhere(stack: StackInfo) -> Iterator[sa.URL]:
    """The address of an empty database."""
    engine = sa.create_engine(stack.database_url, isolation_level="AUTOCOMMIT")
    name = f"restored_{uuid.uuid4().hex[:10]}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"create database {name}")
    yield engine.url.set(database=name)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"drop database {name} with (force)")
    engine.dispose()


def test_a_backup_restored_beside_a_topic_that_moved_on(
    settings: Settings,
    private_database: Database,
    make_topic: MakeTopic,
    elsewhere: sa.URL,
    tmp_path: Path,
    group: str,
    told: list[str],
) -> None:
    """Nothing is lost that the log has, nobody from before ends anything, and what is done twice is what was done
    after the backup."""
    letters = make_topic(name=f"dlq.{group}", errors_deadletterqueue_group_enable="true")
    topic = make_topic()
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for number in range(100):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(30) == 0
    url = private_database.engine.url
    here = settings.replace(database_url=url.render_as_string(hide_password=False))
    given = {
        "SHAREQUEUE_DATABASE_URL": here.database_url,
        "SHAREQUEUE_BOOTSTRAP_SERVERS": here.bootstrap_servers,
    }
    configs = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": letters,
    }
    alter_group_configs(private_database, group, configs)
    at = SharePartition(group, topic, 0)
    topics = Topics(here)

    def observed(state: State) -> None:
        log = topics.offsets(topic)[0]
        single.observe(
            state, at, topics.describe([topic])[topic].topic_id, log.log_start, log.log_end, log.log_end
        )

    def leased(state: State, member: str, most: int) -> Lease:
        lease = single.acquire(state, at, member, None, most, lock_duration_ms=600_000)
        assert lease is not None
        return lease

    state = State(private_database)
    state.initialize(at, topics.describe([topic])[topic].topic_id, 0, 1)
    observed(state)
    done = leased(state, "m", 40)
    single.acknowledge(state, done, {ACCEPT: done.offsets})
    held = leased(state, "holder", 10)  # 40 to 49
    _, secret = Tokens(private_database).create("User:ann", None, None)

    dump = tmp_path / "sharequeue.dump"
    tool("pg_dump", url, "--format=custom", f"--file={dump}")
    assert "CREATE ROLE" in tool("pg_dumpall", url, "--roles-only")

    # What happens after the backup: records are done, one is given up, a token is revoked; the topic moves on.
    single.acknowledge(state, held, {ACCEPT: OffsetSet.of((40, 45), (46, 50)), REJECT: GIVEN_UP})
    later = leased(state, "m", 20)  # 50 to 69
    single.acknowledge(state, later, {ACCEPT: later.offsets})
    sharequeue(REPOSITORY, given, "dlq", "write", "--group", group, "--execute", "--yes")
    Tokens(private_database).revoke(None, "User:ann", dry_run=False)
    for number in range(100, 120):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(30) == 0
    delete_before(settings, topic, 43)

    tool("pg_restore", elsewhere, "--exit-on-error", str(dump))
    restored = {**given, "SHAREQUEUE_DATABASE_URL": elsewhere.render_as_string(hide_password=False)}
    assert "It goes on here now" in sharequeue(REPOSITORY, restored, "adopt", "--execute", "--yes")
    assert "every invariant holds" in sharequeue(REPOSITORY, restored, "verify")
    with Database(restored["SHAREQUEUE_DATABASE_URL"]) as database:
        state = State(database)
        with pytest.raises(FencedStateEpoch):
            single.acknowledge(state, held, {ACCEPT: held.offsets})
        assert principal_of(database, secret, "describe") == "User:ann", "a revoked token is in force again"
        Tokens(database).revoke(None, "User:ann", dry_run=False)
        with pytest.raises(TokenRefused):
            principal_of(database, secret, "describe")
        observed(state)
        again: list[int] = []
        while (lease := single.acquire(state, at, "n", None, 1000)) is not None:
            again += lease.offsets.iter_offsets()
            rejected = lease.offsets & GIVEN_UP
            single.acknowledge(
                state,
                lease,
                {ACCEPT: lease.offsets - rejected, REJECT: rejected} if rejected else {ACCEPT: lease.offsets},
            )
        assert sorted(again) == [*range(43, 120)], (
            "all that the log has and the backup did not know to be done"
        )
        sharequeue(REPOSITORY, restored, "dlq", "write", "--group", group, "--execute", "--yes")
        assert state.figures.describe(group)[0].spso == 120
        assert state.figures.verify() == []
        assert database.rows(sa.text("select * from sharequeue.verify_journal()")) == []
    written = sharequeue(REPOSITORY, restored, "dlq", "list", letters, "-o", "jsonl").splitlines()
    assert len(written) == 2, "one from before and one from after: each decision has its letter"
    told.append(
        "backup restored beside a topic that moved on: 3 records that the log had lost passed over, 27 that were done"
        " after the backup came again, 50 others once; the stale holder refused; a record rejected twice: two letters"
    )
