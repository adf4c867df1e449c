"""An upgrade, one replica of the service at a time, under load: the last release's code beside this one.

The old code is taken from git, as of `BEFORE`, and runs from its own folder. It makes the schema; then this code
migrates while two old replicas answer heartbeats and an old worker works; then the replicas are exchanged one after
the other, with a worker of each release at work. No member is lost, no heartbeat is refused, no record is done twice.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from sharequeue.database import Database
from sharequeue.groups.configs.names import environment_name
from sharequeue.local.stack import StackInfo
from sharequeue.state import State
from tests.deep.servers import Replica, of_code, sharequeue
from tests.fixtures.stack import LOCK_BOUNDS, REPOSITORY, MakeTopic
from tests.waiting import wait_until

BEFORE = "c3ca638"
"""The commit that stands for the last release. Let it follow each release."""
PARTITIONS, MEMBERS, RECORDS = 4, 8, 120_000
INTERVAL_SECONDS = 0.5

WORKER = """
import json, sys, time
import sqlalchemy as sa
from sharequeue.database import Database
from sharequeue.domain.errors import error_for
from sharequeue.domain.offsets import OffsetSet

# In SQL, because the two releases have different methods for it.
ACQUIRE = sa.text(
    "select error_code, error_message, token, offsets::text as offsets"
    " from sharequeue.acquire(:group, :topic, :partition, null, :member, null, 10, p_redelivery => 'fan_out')"
)
ACKNOWLEDGE = sa.text(
    "select error_code, error_message from sharequeue.acknowledge(:group, :topic, :partition, null, :member, null,"
    " cast(:token as uuid), null, cast(:offsets as int8multirange), '{}', '{}', '{}')"
)
url, group, topic, first, last = sys.argv[1:]
with Database(url) as database:
    while True:
        for partition in range(int(first), int(last)):
            began, ranges = time.monotonic(), []
            at = {"group": group, "topic": topic, "partition": partition, "member": f"worker-{first}"}
            rows = database.call(ACQUIRE, **at)
            if rows and not rows[0]["error_code"]:
                for row in rows:
                    ranges += [[each[0], each[1]] for each in OffsetSet.parse(row["offsets"]).runs()]
                held = ",".join(f"[{first},{last + 1})" for first, last in ranges)
                token = str(rows[0]["token"])
                rows = database.call(ACKNOWLEDGE, **at, token=token, offsets=f"{{{held}}}")
            if rows and rows[0]["error_code"]:
                error = error_for(rows[0]["error_code"], rows[0]["error_message"])
                print(json.dumps({"error": str(error)}), flush=True)
                continue
            took = time.monotonic() - began
            print(json.dumps({"partition": partition, "took": took, "runs": ranges}), flush=True)
            time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the last release, in a folder."""
    asked = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", BEFORE]
    archived = subprocess.run(asked, capture_output=True, check=False)
    assert archived.returncode == 0, (
        f"Commit {BEFORE} is not here ({archived.stderr.decode().strip()}). This test runs the last release's code"
        " from git: use a clone with its history (`git fetch --unshallow`)."
    )
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@dataclass
class Worker:
    """A process that leases and accepts, with the code of one release."""

    process: subprocess.Popen[str]
    done: Counter[tuple[int, int]] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    calls: int = 0
    longest: float = 0.0

    @classmethod
    def start(cls, code: Path, *arguments: object) -> Worker:
        """Begin, and read what it says."""
        command = [sys.executable, "-c", WORKER, *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=code, env=of_code(code, {}), stdout=subprocess.PIPE, text=True
        )
        worker = cls(process)
        threading.Thread(target=worker._read, daemon=True).start()
        return worker

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "error" in said:
                self.errors.append(said["error"])
                continue
            self.calls += 1
            self.longest = max(self.longest, said["took"])
            self.done.update(
                (said["partition"], offset) for a, b in said["runs"] for offset in range(a, b + 1)
            )

    def stop(self) -> None:
        """End it between two calls, or in one: what it had not said, nobody counts."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)


class Members:
    """Members that send heartbeats to the replicas in turn, as behind a load balancer: to those that are there."""

    def __init__(self, group: str, topic: str, replicas: list[Replica]) -> None:
        self.group, self.topic, self.replicas = group, topic, replicas
        self.epochs: dict[str, int] = {}
        self.refused: list[dict[str, Any]] = []
        self.answered: Counter[str] = Counter()
        self.longest_silence = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _beat(self, member: str, turn: int) -> bool:
        given = {"group_id": self.group, "member_id": member, "member_epoch": self.epochs.get(member, 0)}
        if member not in self.epochs:
            given["subscribed_topic_names"] = [self.topic]
        for number in range(len(self.replicas)):  # the next one, where one does not answer
            replica = self.replicas[(turn + number) % len(self.replicas)]
            if (answer := replica.heartbeat(**given)) is None:
                continue
            if answer["error_code"]:
                self.refused.append(answer)
            else:
                self.epochs[member] = answer["member_epoch"]
                self.answered[replica.url] += 1
            return True
        return False

    def _run(self) -> None:
        last = dict.fromkeys((f"m{number}" for number in range(MEMBERS)), time.monotonic())
        turn = 0
        while not self._stop.wait(INTERVAL_SECONDS / MEMBERS):
            turn += 1
            member = f"m{turn % MEMBERS}"
            if self._beat(member, turn):
                now = time.monotonic()
                self.longest_silence = max(self.longest_silence, now - last[member])
                last[member] = now

    def stop(self) -> None:
        """No more heartbeats."""
        self._stop.set()
        self._thread.join(60)


def ready(replica: Replica) -> bool:
    """Whether members may be sent there."""
    return replica.answers("/ready") == 200


@pytest.fixture
def given(stack: StackInfo) -> Iterator[dict[str, str]]:
    """The settings of everybody: a database of this test's, which is empty."""
    engine = sa.create_engine(stack.database_url, isolation_level="AUTOCOMMIT")
    name = f"rolled_{uuid.uuid4().hex[:10]}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"create database {name}")
    url = sa.make_url(stack.database_url).set(database=name).render_as_string(hide_password=False)
    try:
        yield {
            "SHAREQUEUE_DATABASE_URL": url,
            "SHAREQUEUE_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
            **{environment_name(config): value for config, value in LOCK_BOUNDS.items()},
        }
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"drop database {name} with (force)")
        engine.dispose()


@pytest.mark.timeout(400)
def test_replicas_upgraded_one_after_the_other_lose_nobody(
    old_code: Path,
    given: dict[str, str],
    stack: StackInfo,
    make_topic: MakeTopic,
    group: str,
    tmp_path: Path,
    told: list[str],
) -> None:
    """The schema first, then the replicas: members stay, both releases lease and acknowledge side by side, no call
    waits for long, and every record that was confirmed was confirmed once."""
    topic = make_topic(partitions=PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": stack.bootstrap_servers, "queue.buffering.max.messages": RECORDS}
    )
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0
    url = given["SHAREQUEUE_DATABASE_URL"]
    sharequeue(old_code, given, "migrate")
    earliest = "share.auto.offset.reset=earliest"
    sharequeue(old_code, given, "configs", "alter", "--create-group", "--group", group, "--set", earliest)
    replicas = [Replica(given, tmp_path / f"old{number}.log", old_code).start() for number in range(2)]
    readiness: list[int | None] = []
    members = Members(group, topic, replicas)
    workers: list[Worker] = []
    began = time.monotonic()

    def goes_on(*those: Worker) -> None:
        """Each of these does fifty more calls, and every member sends two more heartbeats."""
        calls, beats = [each.calls for each in those], sum(members.answered.values())
        wait_until(
            lambda: (
                all(each.calls > before + 50 for each, before in zip(those, calls, strict=True))
                and sum(members.answered.values()) > beats + 2 * MEMBERS
            ),
            90,
            lambda: f"{[each.errors[-3:] for each in those]} {members.refused[-3:]}",
        )

    try:
        wait_until(lambda: len(members.epochs) == MEMBERS, 60, "not all have joined")
        old_worker = Worker.start(old_code, url, group, topic, 0, PARTITIONS // 2)
        workers.append(old_worker)
        wait_until(lambda: old_worker.calls > 50, 60, lambda: str(old_worker.errors[-3:]))
        old_worker.errors.clear()  # before its share-partitions were there

        migrating = time.monotonic()
        applied = sharequeue(REPOSITORY, given, "migrate")
        migrated = time.monotonic() - migrating
        goes_on(old_worker)
        readiness.append(replicas[0].answers("/ready"))

        new_worker = Worker.start(REPOSITORY, url, group, topic, 1, PARTITIONS)
        workers.append(new_worker)
        goes_on(old_worker, new_worker)
        for number in range(2):
            newer = Replica(given, tmp_path / f"new{number}.log").start()
            wait_until(partial(ready, newer), 60, "the new replica is not ready")
            older, replicas[number] = replicas[number], newer
            older.stop()
            goes_on(old_worker, new_worker)
        old_worker.stop()
        goes_on(new_worker)
    finally:
        members.stop()
        for worker in workers:
            worker.stop()
        for replica in replicas:
            replica.stop()
    took = time.monotonic() - began
    assert members.refused == []
    with Database(url) as database:
        state = State(database)
        alive = database.rows(
            sa.text("select member_id from sharequeue.group_members where group_id = :group"), group=group
        )
        assert {row["member_id"] for row in alive} == members.epochs.keys(), "a member was lost"
        assert state.figures.verify() == []
        assert database.rows(sa.text("select * from sharequeue.verify_journal()")) == []
        counted = sum(each.spso for each in state.figures.describe(group))
    done = sum((worker.done for worker in workers), Counter[tuple[int, int]]())
    assert {at for at, times in done.items() if times > 1} == set(), "a record was done twice"
    assert [worker.errors for worker in workers] == [[], []]
    # A worker that was killed in a call may have accepted ten more.
    assert len(done) <= counted <= len(done) + 20
    longest = max(worker.longest for worker in workers)
    assert longest < 5
    assert members.longest_silence < 10
    files = sum("applied" in line for line in applied.splitlines())
    heartbeats, silence = sum(members.answered.values()), members.longest_silence
    told.append(
        f"rolled upgrade from {BEFORE}: {files} files in {migrated:.1f} s under load; {heartbeats} heartbeats to both"
        f" releases in {took:.0f} s, none refused, a member's longest silence {silence:.1f} s; {len(done):,} records"
        f" by both, none twice, longest call {longest:.2f} s; /ready of an old replica then: {readiness[0]}"
    )
