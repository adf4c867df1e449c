"""A ledger of results in topics under kills: runs, their Python workers, the broker, Postgres and the service killed
at the steps of a transfer and at random moments, drivers paused past their locks and their claim.

Another client reads each target all the time, with `read_committed`: it sees each row of an accepted record once, no
row of any other, at no time a part of a record's rows, and the records of a source partition by the offsets of each
transfer. With two queues in a row and order by key, the order of a key in the first topic is that in the last one.
`SHAREQUEUE_TEST_KILLS=1000,200,60` are the deaths of the test of one queue, of the chain, and of each other case.
After `SHAREQUEUE_TEST_SECONDS` no more come: a test ends its work, judges what there is, and says how many came.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import fastavro
import pytest

from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.domain.values import READ_COMMITTED
from sharequeue.kafka.reading import offset_of, place_of, scan
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from tests.deep.deaths import came
from tests.deep.topic_world import (
    ROWS,
    TRANSACTION_MS,
    Case,
    Place,
    Queue,
    Reader,
    Sent,
    TopicWorld,
    topic_world,
)
from tests.fixtures.registry import RegistryServer, framed
from tests.ordered_journal import History, history_of

KILLS, CHAIN_KILLS, OTHER_KILLS = (
    int(each) for each in os.environ.get("SHAREQUEUE_TEST_KILLS", "1000,200,60").split(",")
)
SECONDS = float(os.environ.get("SHAREQUEUE_TEST_SECONDS", "inf"))
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)

QUEUE = [("given", "made")]
SCHEMA_ID = 7
SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "number", "type": "int"},
        {"name": "row", "type": "int"},
        {"name": "fails", "type": "int"},
        {"name": "rejected", "type": "boolean"},
    ],
}


def records_of(world: TopicWorld, topic: str) -> dict[Place, tuple[bytes | None, int]]:
    """Return key and number of each committed record of a topic."""
    with Topics(world.settings) as topics:
        logs = topics.offsets(topic)
    assert all(log.last_stable_offset == log.log_end for log in logs.values()), "a transaction hangs"
    starts = {(topic, at): 0 for at in logs}
    ends = {(topic, at): log.log_end for at, log in logs.items()}
    with closing(scan(world.settings, READ_COMMITTED, starts, ends)) as messages:
        return {
            (place_of(each)[1], offset_of(each)): (each.key(), json.loads(each.value() or b"")["number"])
            for each in messages
        }


def histories(
    world: TopicWorld, queue: Queue, records: dict[Place, tuple[bytes | None, int]]
) -> dict[int, History]:
    """Replay the journal of each source partition."""
    keys: dict[int, dict[int, bytes | None]] = defaultdict(dict)
    for (partition, offset), (key, _) in records.items():
        keys[partition][offset] = key
    return {
        partition: history_of(
            *(world.database, queue.group, queue.source, partition, here, frozenset(here)),
            back_off=timedelta(days=1),
        )
        for partition, here in keys.items()
    }


def check(world: TopicWorld, queue: Queue, reader: Reader) -> str:
    """Hold a target to the journal of its queue."""
    reader.look()
    records = records_of(world, queue.source)
    replayed = histories(world, queue, records)
    accepted = {
        (at, offset): finish
        for at, history in replayed.items()
        for offset, finish in history.accepted.items()
        if (at, offset) in records
    }
    given_up = {(at, offset) for at, history in replayed.items() for offset in history.given_up} & set(
        records
    )
    assert accepted.keys() | given_up == set(records), "lost"
    assert not accepted.keys() & given_up
    letters = Counter(
        (each.source_partition, each.source_offset)
        for each in read_dead_letters(world.settings, queue.letters)
    )
    assert letters == dict.fromkeys(given_up, 1)
    assert reader.halves == [], "a part of a record was seen"
    rows: dict[Place, list[int]] = defaultdict(list)
    for each in reader.seen:
        rows[each.source].append(each.row)
        assert records[each.source] == (each.key, each.number)
        assert accepted[each.source].lease_id in (None, each.lease_id)
    wrong = {at: found for at, found in rows.items() if found != list(range(ROWS))}
    assert wrong == {}, f"not once, and in order: {dict(list(wrong.items())[:9])}"
    assert rows.keys() == accepted.keys(), "accepted and not sent, or the other way round"
    descents = check_order(reader.seen, replayed)
    state = State(world.database)
    assert state.figures.verify(queue.group) == []
    assert (world.lag(queue), world.waiting(queue)) == (0, 0)
    leases = sum(each.leases for each in replayed.values())
    return (
        f"{queue.group}: {len(records):,} records, {len(accepted):,} accepted in {leases:,} leases, {len(given_up):,}"
        f" dead letters; {len(reader.seen):,} rows read once, {reader.looks:,} looks at the topic meanwhile;"
        f" {descents} times a later transfer had an earlier offset"
    )


def check_order(seen: list[Sent], replayed: dict[int, History]) -> int:
    """Records of a source partition ascend in each transfer, and a later transfer has what was acknowledged later."""
    lines: dict[tuple[int, int], list[Sent]] = defaultdict(list)
    for each in seen:
        lines[each.source[0], each.at[0]].append(each)
    descents = 0
    for (partition, _), line in lines.items():
        line.sort(key=lambda each: each.at)
        commits = [replayed[partition].accepted[each.source[1]].commit for each in line]
        # The earliest commit of what follows.
        least = [*commits]
        for at in range(len(line) - 2, -1, -1):
            least[at] = min(least[at], least[at + 1])
        most = 0
        for at, each in enumerate(line):
            if at and each.source[1] < line[at - 1].source[1]:
                descents += 1
                assert most < least[at], f"{line[at - 1]}, and then {each}, which was acknowledged earlier"
            most = max(most, commits[at])
    return descents


def by_key(records: list[tuple[Place, bytes | None, int]]) -> dict[bytes, list[int]]:
    """Return the numbers of each key in the order of a topic; a key is in one partition."""
    found: dict[bytes, list[int]] = defaultdict(list)
    places: dict[bytes, set[int]] = defaultdict(set)
    for at, key, number in sorted(records):
        if key is not None:
            found[key].append(number)
            places[key].add(at[0])
    assert all(len(each) == 1 for each in places.values())
    return found


def avro(value: bytes) -> Mapping[str, Any]:
    """Read a row that was written with the schema."""
    assert value[:5] == framed(SCHEMA_ID, b"")
    return fastavro.schemaless_reader(io.BytesIO(value[5:]), SCHEMA, SCHEMA)  # type: ignore[return-value]


def hold(stack_home: Path, folder: Path, told: list[str], title: str, case: Case, kills: int) -> None:
    """Let a queue write under kills, and hold its target to its journal."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    with topic_world(stack_home, folder, SEED, case) as world:
        world.chaos(kills, SECONDS)
        world.until_done()
        of_each = zip(world.queues, world.readers, strict=True)
        tell(world, told, title, [check(world, queue, reader) for queue, reader in of_each])


def tell(world: TopicWorld, told: list[str], title: str, lines: list[str]) -> None:
    """Add the figures of a test to the end of the run."""
    deaths = came(world.folder)
    who = dict(Counter(each["who"] for each in deaths).most_common())
    steps = dict(Counter(f"{each['who']} at {each['at']}" for each in deaths).most_common())
    told.append(f"{title}, seed {SEED}: {world.killed()} deaths {who}, the service {world.services} times")
    told.extend(f"  {line}" for line in (*lines, f"{steps}", f"{dict(Counter(world.log))}"))


@pytest.mark.timeout(0)
def test_a_topic_has_each_accepted_record_once(stack_home: Path, tmp_path: Path, told: list[str]) -> None:
    """Two groups of two runs, which take over from each other, and everybody is killed."""
    topics = {"given": 2, "made": 3, "also-made": 2}
    case = Case(topics, [("given", "made"), ("given", "also-made")], (0, 0, 1, 1))
    hold(stack_home, tmp_path, told, "results in a topic", case, KILLS)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case({"given": 1, "made": 1}, QUEUE, (0, 0)), id="one partition"),
        pytest.param(Case({"given": 50, "made": 50}, QUEUE, (0, 0)), id="fifty partitions"),
        pytest.param(
            Case(
                *({"given": 2, "made": 3}, QUEUE, (0, 0)),
                servers=("stall",),
                of_servers=(3, 4, 5),
                tasks=(0, 0, 1),
                environment={"TOPIC_TRANSACTION_MS": str(TRANSACTION_MS)},
            ),
            id="the broker stands still for longer than a transaction",
        ),
    ],
)
def test_other_topics_have_each_accepted_record_once(
    stack_home: Path, tmp_path: Path, told: list[str], case: Case, request: pytest.FixtureRequest
) -> None:
    """The same with other topics, and with a broker that aborts transactions because they have timed out."""
    hold(stack_home, tmp_path, told, request.node.callspec.id, case, OTHER_KILLS)


@pytest.mark.timeout(0)
def test_a_topic_has_each_accepted_record_once_as_avro(
    stack_home: Path, tmp_path: Path, told: list[str], registry_server: RegistryServer
) -> None:
    """Values are Avro with a schema of a registry; rows that do not fit it make their record a dead letter."""
    registry_server.register("made-value", SCHEMA, SCHEMA_ID)
    case = Case(
        *({"given": 2, "made": 3}, QUEUE, (0, 0)),
        environment={"TOPIC_SUBJECT": "made-value", "SHAREQUEUE_REGISTRY_URL": registry_server.url},
        parse=avro,
    )
    hold(stack_home, tmp_path, told, "results as Avro", case, OTHER_KILLS)


@pytest.mark.timeout(0)
def test_a_chain_of_two_queues_keeps_the_order_of_each_key(
    stack_home: Path, tmp_path: Path, told: list[str]
) -> None:
    """What the second queue reads is what the first has written: order by key in both, and kills of both."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    topics = {"given": 2, "between": 3, "last": 2}
    case = Case(topics, [("given", "between"), ("between", "last")], (0, 1), {"sharequeue.order": "key"})
    with topic_world(stack_home, tmp_path, SEED, case) as world:
        world.chaos(CHAIN_KILLS, SECONDS)
        world.until_done()
        lines = [
            check(world, queue, reader) for queue, reader in zip(world.queues, world.readers, strict=True)
        ]
        given = by_key([(at, *record) for at, record in records_of(world, "given").items()])
        for reader in world.readers:
            for key, numbers in by_key([(each.at, each.key, each.number) for each in reader.seen]).items():
                firsts = list(dict.fromkeys(numbers))
                assert firsts == [each for each in given[key] if each in set(firsts)], (
                    f"{reader.topic}: {key!r}"
                )
                assert numbers == sorted(numbers), f"{reader.topic}: {key!r}"
        lines.append(f"{len(given)} keys in the order of the first topic in both others")
        tell(world, told, "a chain of two queues", lines)
