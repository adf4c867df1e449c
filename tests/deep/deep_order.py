"""A ledger of ordered keys under kills: two runs and a consumer on one group, drivers, Postgres and the broker killed
at random.

For each key the accepted offsets ascend in the order of their commits: in the outputs by their leases, and in the
journal. Nothing is lost, nothing is doubled, and no record waits but behind one of its own key.
`SHAREQUEUE_TEST_ORDER` is `records,keys,partitions,kills`; `100000,1000,6,40` is the whole form, the default takes
minutes.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.groups.configs import alter_group_configs
from sharequeue.spark.output.manifest import read_manifest
from sharequeue.state import State
from tests.deep.ordered_world import (
    LOCK_MS,
    Order,
    OrderedWorld,
    Sizes,
    ordered_world,
    orders,
    until_done,
    until_held,
)
from tests.ordered_journal import History, history_of

SIZES = tuple(int(each) for each in os.environ.get("SHAREQUEUE_TEST_ORDER", "8000,200,6,8").split(","))
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
QUIET_S = 3 * LOCK_MS / 1000


def sizes() -> Sizes:
    """Return the sizes of this run."""
    records, keys, partitions, kills = SIZES
    return Sizes(records, keys, partitions, kills, 600 + records / 20)


def output_rows(world: OrderedWorld) -> list[tuple[int, int, int, int]]:
    """Return partition, lease, offset and number of each row that counts, by partition and lease."""
    found = []
    for folder in read_manifest(State(world.database), world.name, world.name):
        for file in Path(folder.removeprefix("file://")).rglob("*.parquet"):
            lease = int(file.parent.name.partition("=")[2])
            table = pq.ParquetFile(file).read(["partition", "offset", "number"])
            columns = (table.column(name).to_pylist() for name in ("partition", "offset", "number"))
            found += [
                (partition, lease, offset, number) for partition, offset, number in zip(*columns, strict=True)
            ]
    return sorted(found)


def chaos(
    world: OrderedWorld, made: list[Order], kills: int, each: Callable[[], None] = lambda: None
) -> Counter[str]:
    """Produce the records slice by slice, and kill or stop somebody after each; `each` is called before."""
    done: Counter[str] = Counter()
    a_slice = -(-len(made) // (kills + 1))
    for step in range(kills + 1):
        world.produce(made[step * a_slice : (step + 1) * a_slice])
        world.advance(30)
        if step < kills:
            each()
            what = world.disturb()
            done[what] += 1
            print(f"{step}: {what}, {world.finished():,} finished, {world.lag():,} open", flush=True)
    return done


def histories(
    world: OrderedWorld, made: list[Order], records: dict[int, dict[int, tuple[int, bytes | None]]]
) -> dict[int, History]:
    """Replay the journal of each share-partition."""
    troubled = {each.number for each in made if each.fails or each.rejected or each.kills}
    return {
        partition: history_of(
            world.database,
            world.name,
            world.name,
            partition,
            {offset: key for offset, (_, key) in here.items()},
            frozenset(offset for offset, (number, _) in here.items() if number in troubled),
            world.letters_hold,
        )
        for partition, here in records.items()
    }


def check(
    world: OrderedWorld,
    made: list[Order],
    told: list[str],
    ordered: Callable[[int], bool] = lambda lease_id: True,
) -> dict[int, History]:
    """Hold the outputs, the consumer's ledger and the dead letters to the journal, and the journal to the rule, where
    leases are `ordered`."""
    records = world.records()
    replayed = histories(world, made, records)
    numbers = Counter(number for here in records.values() for number, _ in here.values())
    assert set(numbers) == {each.number for each in made}
    for partition, history in replayed.items():
        key_of = {offset: key for offset, (_, key) in records[partition].items()}
        assert history.overtaken(key_of, ordered) == [], f"partition {partition}"
        assert history.waits == [], f"partition {partition}"
        assert history.most_leases == 1 or not ordered(0), f"partition {partition}"
        finished = history.accepted.keys() | history.given_up.keys()
        assert set(key_of) <= finished, (
            f"partition {partition}: {sorted(set(key_of) - finished)[:9]} are lost"
        )
        assert not history.accepted.keys() & history.given_up.keys()
    rows = output_rows(world)
    assert max(Counter((partition, offset) for partition, _, offset, _ in rows).values(), default=1) == 1
    last: dict[tuple[int, bytes], int] = defaultdict(lambda: -1)
    for partition, lease, offset, number in rows:
        _, key = records[partition][offset]
        assert records[partition][offset][0] == number
        assert replayed[partition].accepted[offset].lease_id in (None, lease)
        if key is not None:
            in_order = last[partition, key] < offset or not ordered(0)
            assert in_order, f"{key!r}: {offset} after {last[partition, key]}"
            last[partition, key] = offset
    written = {(partition, offset) for partition, _, offset, _ in rows}
    accepted = {
        (partition, offset)
        for partition, history in replayed.items()
        for offset in history.accepted
        if offset in records[partition]
    }
    confirmed = world.consumed("committed")
    assert max(Counter(confirmed).values(), default=1) == 1, "a consumer accepted a record twice"
    assert not set(confirmed) & written
    assert not ordered(0) or world.consumed("together") == [], "a poll returned two records of a key"
    assert written | set(confirmed) <= accepted
    assert accepted - written <= set(world.consumed("handed")), "accepted, but in no output"
    letters = Counter(
        (letter.source_partition, letter.source_offset)
        for letter in read_dead_letters(world.settings, world.letters)
    )
    given_up = {
        (partition, offset)
        for partition, history in replayed.items()
        for offset in history.given_up
        if offset in records[partition]
    }
    assert letters == dict.fromkeys(given_up, 1)
    assert State(world.database).figures.verify() == []
    left = sa.text("select count(*) as rows from sharequeue.open_key_records")
    assert world.database.rows(left)[0]["rows"] == 0
    told.append(
        f"order by key, seed {SEED}: {len(numbers):,} records, {len(written):,} accepted by runs and"
        f" {len(accepted - written):,} by consumers, {len(given_up):,} dead letters,"
        f" {sum(each.leases for each in replayed.values()):,} leases; {world.killed} kills and pauses"
    )
    return replayed


@pytest.mark.timeout(0)
def test_no_record_overtakes_another_of_its_key(stack_home: Path, tmp_path: Path, told: list[str]) -> None:
    """Two runs and a consumer are killed and stopped at random, and so are Postgres and the broker. Each record is
    accepted once or becomes one dead letter; within a key none is accepted while an earlier one is open."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    size, made = sizes(), orders(sizes(), SEED)
    with ordered_world(stack_home, tmp_path, "ordered", size, SEED) as world:
        done = chaos(world, made, size.kills)
        until_done(world, size.patience_s)
        check(world, made, told)
        told.append(f"  {dict(done)}")


@pytest.mark.timeout(0)
def test_a_dead_letter_holds_its_key_until_an_operator_acts(
    stack_home: Path, tmp_path: Path, told: list[str]
) -> None:
    """The same, with `sharequeue.order.on.dead.letter = hold`: what is behind a dead letter is accepted only after an
    operator has redriven or discarded it."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    size, made = sizes(), orders(sizes(), SEED)
    configs = {"sharequeue.order.on.dead.letter": "hold"}
    with ordered_world(stack_home, tmp_path, "held", size, SEED, **configs) as world:
        done = chaos(world, made, size.kills)
        until_held(world, size.patience_s)
        acted = State(world.database).now()
        held = {
            (letter.source_partition, letter.source_offset)
            for letter in read_dead_letters(world.settings, world.letters)
        }
        world.repaired.touch()
        while world.lag() != 0:
            world.command("dlq", "discard", world.letters, "--cause", "exhausted", "--execute", "--yes")
            world.command("dlq", "redrive", world.letters, "--cause", "rejected", "--execute", "--yes")
            world.advance(QUIET_S)
        until_done(world, size.patience_s)
        assert held
        assert held_back(world, held, check(world, made, told), acted) == []
        told.append(f"  {dict(done)}; {len(held)} letters held their keys")


@dataclass
class Switches:
    """Switches the order on and off, and knows under which a lease was acquired: leases have ascending numbers."""

    world: OrderedWorld
    on: list[tuple[int, int]] = field(default_factory=list)
    since: int | None = 0

    def __call__(self) -> None:
        """Switch it."""
        before = self._last_lease()
        value = "none" if self.since is not None else "key"
        alter_group_configs(self.world.database, self.world.name, {"sharequeue.order": value})
        if self.since is not None:
            self.on.append((self.since, before))
        self.since = None if self.since is not None else self._last_lease()

    def ordered(self, lease_id: int) -> bool:
        """Return whether a lease was acquired under `key`."""
        more = [] if self.since is None else [(self.since, sys.maxsize)]
        return any(first < lease_id <= last for first, last in [*self.on, *more])

    def _last_lease(self) -> int:
        query = sa.text("select last_value from sharequeue.leases_lease_id_seq")
        return int(self.world.database.rows(query)[0]["last_value"])


@pytest.mark.timeout(0)
def test_the_order_is_switched_off_and_on_while_they_work(
    stack_home: Path, tmp_path: Path, told: list[str]
) -> None:
    """Nothing is lost or doubled by it, and no lease that was acquired under `key` lets a record overtake another,
    also where the earlier one was leased or failed before the switch."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    size, made = sizes(), orders(sizes(), SEED)
    with ordered_world(stack_home, tmp_path, "switched", size, SEED) as world:
        switches = Switches(world)
        done = chaos(world, made, size.kills, switches)
        until_done(world, size.patience_s)
        check(world, made, told, switches.ordered)
        told.append(f"  {dict(done)}, order switched {size.kills} times")


def held_back(
    world: OrderedWorld,
    held: set[tuple[int | None, int | None]],
    replayed: dict[int, History],
    acted: datetime,
) -> list[tuple[int, int]]:
    """Return what was accepted behind a dead letter of its key before an operator acted."""
    records, found = world.records(), []
    for partition, history in replayed.items():
        firsts: dict[bytes, int] = {}
        for offset, (_, key) in sorted(records[partition].items()):
            if key is not None and (partition, offset) in held:
                firsts.setdefault(key, offset)
            before = offset in history.accepted and history.accepted[offset].at < acted
            if key is not None and before and offset > firsts.get(key, offset):
                found.append((partition, offset))
    return found
