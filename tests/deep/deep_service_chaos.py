"""Two replicas of the service with 200 members, while everything around them fails in turn: no member is lost that
heartbeats, no share-partition stays unassigned, nothing is leased that does not exist, nothing is accepted twice, and
each fault is told by a metric while it lasts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.domain.settings import Settings
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.clients import client_config
from sharequeue.local.stack import up
from sharequeue.state import State
from tests.deep.service_chaos import HEARTBEAT_MS, SESSION_MS, of
from tests.deep.service_chaos_world import CHANGING, LONG_S, TOPICS, WORKED, World, world_at_work
from tests.fixtures.stack import jars_folder, say
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

DISKS = ("postgres", "kafka")


@contextmanager
def small_disks(home: Path) -> Iterator[dict[str, Path]]:
    """Put the data of Postgres and Kafka on disks of their own, which a test can fill."""
    if os.geteuid():
        pytest.fail("a small file system can be mounted by root only: run this test as root")
    folders = {name: home / name for name in DISKS}
    for folder in folders.values():
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=1g,mode=755", "tmpfs", str(folder)]
        subprocess.run(command, check=True, timeout=30)
    try:
        yield folders
    finally:
        for folder in folders.values():
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


@pytest.fixture(scope="module")
def disks(module_home: Path) -> Iterator[dict[str, Path]]:
    """Give the disks of the servers, which a test can fill."""
    with small_disks(module_home) as made:
        yield made


@pytest.fixture(scope="module")
def world(
    module_home: Path, disks: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Give two replicas that serve 200 members of ten groups, of which three are worked on all the time."""
    up(module_home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})
    with world_at_work(Settings.load(module_home), tmp_path_factory.mktemp("replicas")) as made:
        yield made


@pytest.mark.parametrize("step", ["watch", "sweep", "heartbeat"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
def test_a_replica_goes_inside_a_step(world: World, step: str, how: signal.Signals, which: int) -> None:
    """It is killed, or stopped for a while and then goes on where it was, at some statement of the step. Of the two,
    one watches, and the other one asks whether it may."""
    nth = random.Random(f"{step}{how}{which}").randrange(1, 8)  # noqa: S311 - a draw of a test
    world.replicas[which].signal_inside(step, how, nth)
    world.watched(
        "a replica that is gone", lambda found: of(found, "sharequeue_replicas") == [1.0]
    ).for_seconds(0.0, 2 * LONG_S)
    world.recover()


def test_a_replica_that_falls_again_and_again(world: World) -> None:
    """Each start is a new replica, so that more are seen than there are; it lengthens no session."""
    drawn = random.Random(1)  # noqa: S311 - a draw of a test
    watched = world.watched(
        "a crash loop", lambda found: (of(found, "sharequeue_replicas") or [2.0])[0] != 2.0
    )
    for _ in range(8):
        world.replicas[0].send(signal.SIGKILL)
        world.replicas[0].start()
        time.sleep(drawn.uniform(0.5, 3.5))
        watched.look()
    assert watched.shown
    world.recover()


def test_postgres_is_killed_and_comes_back(world: World) -> None:
    """Nobody can be heard meanwhile, and so nobody is lost."""
    os.kill(world.pid("postgres"), signal.SIGKILL)
    down = world.watched("Postgres away", lambda found: of(found, "sharequeue_database_up") == [0.0])
    down.for_seconds(3.0, SESSION_MS / 2000)
    world.up()
    world.recover()


def test_the_broker_stands_still(world: World) -> None:
    """Members go on; what was produced before is worked on."""
    broker = world.pid("kafka")
    os.kill(broker, signal.SIGSTOP)
    try:
        world.watched("the broker away", lambda found: sum(of(found, "sharequeue_faults")) > 0).for_seconds(
            8.0, 40.0
        )
    finally:
        os.kill(broker, signal.SIGCONT)
    world.recover()


@pytest.mark.parametrize(("partitions", "number"), [(1, 2), (5, 3)], ids=["smaller", "larger"])
def test_a_topic_is_deleted_and_made_again(world: World, partitions: int, number: int) -> None:
    """Its members stay, and nothing is leased of the new one, until its group has been told to begin anew."""
    admin, state = AdminClient(client_config(world.settings)), State(world.database)
    del world.ledger.incarnation[CHANGING]
    admin.delete_topics([CHANGING])[CHANGING].result(60)
    gone = world.watched(
        "a deleted topic",
        lambda found: any(
            sum(of(found, "sharequeue_share_partition_status", topic=CHANGING, status=each))
            for each in ("topic_deleted", "topic_recreated")
        ),
    )
    gone.for_seconds(0.0, 40.0)
    TOPICS[CHANGING] = partitions
    world.create(CHANGING, partitions, number)
    name, topic_id = world.ledger.incarnation[CHANGING]
    world.ledger.produce(CHANGING, partitions, 20)
    wait_until(lambda: "created again with the same name" in world.described(CHANGING), 60, world.logs)
    assert not [each for each in world.ledger.accepted if each[1] == name]
    readers = [each for each in world.members if each.group_id == CHANGING]
    assert not [each for each in readers if each.lost.is_set()]
    for member in readers:
        member.leave()
        world.members.remove(member)
    state.administration.delete_offsets(CHANGING, CHANGING)
    world.join({CHANGING: (CHANGING,)})
    assert {each.topic_id for each in state.figures.describe(CHANGING)} == {topic_id}
    assert len(state.figures.describe(CHANGING)) == partitions
    world.recover()


def test_names_that_are_poison(world: World) -> None:
    """A topic's name that cannot be one, left by somebody; a group's name that would break a line or a label."""
    odd = 'a "group\' {of="x"} \\\\n ' + "ä" * 200
    for group in ("left", odd):
        assert (
            heartbeat(
                world.database, HeartbeatRequest(group, "m", 0, subscribed_topic_names=("orders",))
            ).error_code
            == 0
        )
    poison = sa.text(
        "update sharequeue.members set subscribed_topic_names = '{a b,\"\",..}' where group_id = 'left' returning 1"
    )
    assert world.database.rows(poison)
    told = world.watched(
        "a name that is none",
        lambda found: (
            sum(of(found, "sharequeue_faults")) > 0 and of(found, "sharequeue_group_members", group=odd) != []
        ),
    )
    told.for_seconds(5.0, 40.0)
    for group in ("left", odd):
        assert heartbeat(world.database, HeartbeatRequest(group, "m", -1)).error_code == 0
    world.recover()


def test_rows_locked_by_an_administrator_delay_only_their_members(world: World) -> None:
    """A session of an administrator holds a group's row and a share-partition's: the others' members are heard on."""
    heard = sa.text(
        "select group_id, min(session_expires_at) as heard from sharequeue.group_members"
        " where group_id not in ('g3', 'g4') group by group_id"
    )

    def sessions() -> dict[str, object]:
        return {row["group_id"]: row["heard"] for row in world.database.rows(heard)}

    dsn = world.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg2.connect(dsn) as holder, holder.cursor() as cursor:
        cursor.execute("set idle_in_transaction_session_timeout = 0")
        cursor.execute("select from sharequeue.share_groups where group_id = 'g3' for update")
        cursor.execute("select from sharequeue.share_partitions where group_id = 'g4' for update")
        before, refused = sessions(), world.refused()
        world.watched("a row that is held", lambda found: world.refused() > refused).for_seconds(
            4 * HEARTBEAT_MS / 1000, 25.0
        )
        after = sessions()
        holder.rollback()
    assert before.keys() == after.keys()
    assert [group for group in before if before[group] == after[group]] == []
    world.recover()


def write_much(world: World, server: str) -> None:
    """Have a server need more room than it has."""
    if server == "kafka":
        admin = AdminClient(client_config(world.settings) | {"log_level": 0})
        admin.create_topics([NewTopic(f"fill-{time.monotonic_ns()}", 1, 1)])
        return
    megabytes = sa.text("select pg_logical_emit_message(false, 'fill', repeat('x', 8000000))")
    with suppress(SQLAlchemyError):
        world.database.rows(megabytes)


@pytest.mark.parametrize("server", DISKS)
def test_a_disk_is_full(world: World, disks: dict[str, Path], server: str) -> None:
    """The server may end by that; with room again, and started again where it ended, all goes on."""
    folder = disks[server]
    left = os.statvfs(folder)
    filler = folder / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_bsize)
    full = world.watched(
        f"a full disk under {server}",
        lambda found: of(found, "sharequeue_database_up") == [0.0] or sum(of(found, "sharequeue_faults")) > 0,
    )
    try:
        began = time.monotonic()
        while not full.look() and time.monotonic() - began < SESSION_MS / 2000:
            write_much(world, server)
            time.sleep(0.2)
    finally:
        filler.unlink()
    assert full.shown, world.logs()
    world.up()
    world.recover()


def test_the_ledger_at_the_end(world: World, told: list[str]) -> None:
    """Every record that was produced to what is still there was accepted by each group that works, once."""
    for group in WORKED:
        topics = {topic for each in world.members if each.group_id == group for topic in each.topics}
        names = {world.ledger.incarnation[topic][0] for topic in topics}
        produced = sum(count for (name, _), count in world.ledger.produced.items() if name in names)
        done = sum(each.spso for each in State(world.database).figures.describe(group))
        known = sum(
            1 for of_group, name, _, _ in world.ledger.accepted if of_group == group and name in names
        )
        assert done == produced >= known
        told.append(f"{group}: {produced:,} records, all done; of {known:,} the answer arrived")
    told.append(
        f"200 members, none lost; unassigned for {world.longest_unassigned:.1f} s at most after a fault; refusals"
        f" that workers met: {dict(world.ledger.refused)}"
    )
