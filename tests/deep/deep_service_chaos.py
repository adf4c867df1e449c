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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.groups.membership import Membership
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import status, up
from sharequeue.settings import Settings
from sharequeue.state import State
from tests.deep.service_chaos import (
    HEARTBEAT_MS,
    SESSION_MS,
    UNASSIGNED,
    Balancer,
    Ledger,
    Replica,
    Samples,
    Watched,
    at_work,
    get,
    of,
)
from tests.fix_stack import jars_folder, say
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

GROUPS, MEMBERS, WORKERS = 10, 20, 6
CHANGING = "changing"
"""A topic that is deleted and made again, and the group that reads it alone."""
WORKED = ("g0", "g1", CHANGING)
TOPICS = {"orders": 4, "parcels": 4, CHANGING: 3}
DISKS = ("postgres", "kafka")
UNASSIGNED_S = HEARTBEAT_MS / 1000 + 4.0
"""One heartbeat interval, one look of the watch, and two seconds for a machine at its limit."""
LONG_S = 16.0
"""Longer than the 15 s in which a replica counts as there."""


@dataclass
class World:
    """All there is."""

    home: Path
    settings: Settings
    database: Database
    ledger: Ledger
    replicas: list[Replica]
    balancer: Balancer
    members: list[Membership]
    disks: dict[str, Path]
    longest_unassigned: float = 0.0

    def watched(self, name: str, told_by: Callable[[Samples], bool]) -> Watched:
        return Watched(self.balancer, name, told_by)

    def up(self) -> None:
        up(self.home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})

    def pid(self, server: str) -> int:
        (pid,) = (each.pid for each in status(self.home) if each.name == server)
        assert pid is not None
        return pid

    def create(self, topic: str, partitions: int, number: int) -> None:
        """Make a topic, and name it in the ledger."""
        admin = AdminClient(client_config(self.settings))
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)

        def there() -> bool:
            with Topics(self.settings) as topics:
                found = topics.describe([topic]).get(topic)
            if found is None or found.partitions != partitions:
                return False  # not everywhere yet
            self.ledger.incarnation[topic] = f"{topic} {number}", found.topic_id
            return True

        wait_until(there, 60)

    def join(self, reads: Mapping[str, tuple[str, ...]]) -> None:
        """Have so many members join each of these groups, for its topics."""
        url = f"http://127.0.0.1:{self.balancer.port}"
        joining = [
            Membership(url, group, topics, request_timeout=3.0)
            for group, topics in reads.items()
            for _ in range(MEMBERS)
        ]
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda member: member.join(timeout=120), joining))
        self.members += joining

    def recover(self) -> None:
        """The fault is over: within a moment all is as it was, and what is produced now is worked on."""
        for replica in self.replicas:
            replica.send(signal.SIGCONT)
            replica.start()
        wait_until(lambda: len(self.balancer.ready) == len(self.replicas), 90, self.logs)
        began = time.monotonic()
        wait_until(lambda: not self.database.rows(UNASSIGNED), 60, self.unassigned)
        self.longest_unassigned = max(self.longest_unassigned, time.monotonic() - began)
        assert time.monotonic() - began < UNASSIGNED_S
        for topic, partitions in TOPICS.items():
            if topic in self.ledger.incarnation:
                self.ledger.produce(topic, partitions, 20)
        wait_until(self.drained, 120, self.lags)
        lost = {each.member_id: each.lost_reason for each in self.members if each.lost.is_set()}
        assert not lost, lost
        rows = self.database.rows(sa.text("select group_id, member_id from sharequeue.group_members"))
        there = {(row["group_id"], row["member_id"]) for row in rows}
        assert {(each.group_id, each.member_id) for each in self.members} <= there
        assert self.ledger.wrong == []
        assert self.ledger.doubled() == []
        for group in WORKED:
            assert State(self.database).figures.verify(group) == []

    def drained(self) -> bool:
        return sum(self.lags().values()) == 0

    def lags(self) -> dict[str, int]:
        """What is left to do by what was produced, and not by what the service has seen."""
        left = {}
        for group in WORKED:
            for each in State(self.database).figures.describe(group):
                name, topic_id = self.ledger.incarnation.get(each.topic, ("", ""))
                if each.topic_id == topic_id:
                    done = self.ledger.produced[name, each.partition] - each.spso
                    left[f"{group} {each.topic}-{each.partition}"] = done
        return left or {"nothing is initialised": 1}

    def unassigned(self) -> str:
        return str(self.database.rows(UNASSIGNED)[:5]) + self.logs()

    def described(self, group: str) -> str:
        """What the service says of a group."""
        return "".join(get(each.port, f"/v1/groups/{group}", 5.0) or "" for each in self.replicas)

    def refused(self) -> float:
        """Count the heartbeats that got an error."""
        all_of_them = self.balancer.total("sharequeue_heartbeats_total")
        return all_of_them - self.balancer.total("sharequeue_heartbeats_total", error_code="0")

    def logs(self) -> str:
        return "\n".join(f"--- {each.name}\n{each.log()}" for each in self.replicas)


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
def world(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Give two replicas that serve 200 members of ten groups, of which two are worked on all the time."""
    folder = tmp_path_factory.mktemp("replicas")
    with small_disks(module_home) as disks:
        up(module_home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})
        settings = Settings.load(module_home)
        replicas = [Replica(module_home, folder, name) for name in ("first", "second")]
        with Database.open(settings) as database:
            ledger = Ledger(database, settings)
            reads = {f"g{n}": ("orders", "parcels") for n in range(GROUPS - 1)} | {CHANGING: (CHANGING,)}
            balancer = Balancer(replicas)
            made = World(module_home, settings, database, ledger, replicas, balancer, [], disks)
            try:
                for group in reads:
                    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
                for topic, partitions in TOPICS.items():
                    made.create(topic, partitions, 1)
                for replica in replicas:
                    replica.start()
                wait_until(lambda: len(balancer.ready) == 2, 120, made.logs)
                made.join(reads)
                with at_work(
                    ledger, lambda: [each for each in made.members if each.group_id in WORKED], WORKERS
                ):
                    made.recover()
                    yield made
            finally:
                balancer.close()
                for replica in replicas:
                    replica.send(signal.SIGCONT)
                    replica.send(signal.SIGKILL)


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
    assert watched.said
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
            for each in ("topic_deleted", "topic_replaced")
        ),
    )
    gone.for_seconds(0.0, 40.0)
    TOPICS[CHANGING] = partitions
    world.create(CHANGING, partitions, number)
    name, topic_id = world.ledger.incarnation[CHANGING]
    world.ledger.produce(CHANGING, partitions, 20)
    wait_until(lambda: "made again under its name" in world.described(CHANGING), 60, world.logs)
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


def test_rows_are_held_by_somebody(world: World) -> None:
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
def test_a_disk_is_full(world: World, server: str) -> None:
    """The server may end by that; with room again, and started again where it ended, all goes on."""
    folder = world.disks[server]
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
    assert full.said, world.logs()
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
