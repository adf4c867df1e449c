"""A ledger of ordered keys under kills: two runs and a consumer on one group; drivers, the consumer, Postgres, the
broker and the service killed in random order, and processes paused past their locks.

For each key the accepted offsets ascend in the order of their commits: in the outputs by their leases or by the
commits of a table, and in the journal. Nothing is lost, nothing is doubled, and no record waits but behind one of its
own key, for that one's back-off. `SHAREQUEUE_TEST_ORDER` is `records,keys,partitions,kills`: `100000,1000,6,40` is
the whole form, the default takes minutes.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.state import State
from tests.deep.ordered_operator import Operator
from tests.deep.ordered_outputs import Kind, Row, doubled
from tests.deep.ordered_world import (
    LOCK_MS,
    WAIT_MS,
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
Place = tuple[int, int]
"""A partition and an offset."""


@dataclass(frozen=True, slots=True)
class Story:
    """What an operator has done, where it changes what must hold."""

    ordered: Callable[[int], bool] = lambda lease_id: True
    """Whether a lease was acquired under `key`."""
    always: bool = True
    """Whether all were."""
    holding: list[tuple[datetime, datetime]] = field(default_factory=list)
    """When dead letters held their keys, until somebody acted."""
    few_keys: list[tuple[datetime, datetime, int]] = field(default_factory=list)
    """When at most so many keys could be open."""
    redone: Mapping[int, int] = field(default_factory=dict)
    """Partitions that began again, and the last lease before that."""
    published: frozenset[Place] = frozenset()
    """Records whose rows come from a replay."""


def sizes() -> Sizes:
    """Return the sizes of this run."""
    return Sizes(*SIZES)


def chaos(
    world: OrderedWorld, made: list[Order], kills: int, each: Callable[[], object] = lambda: None
) -> Counter[str]:
    """Produce the records slice by slice, and kill or stop somebody after each; `each` is called before."""
    done: Counter[str] = Counter()
    a_slice = -(-len(made) // (kills + 1))
    for step in range(kills + 1):
        world.produce(made[step * a_slice : (step + 1) * a_slice])
        world.advance(30)
        if step < kills:
            acted = each()
            what = world.disturb()
            done[what] += 1
            what = f"{acted}, {what}" if acted else what
            print(f"{step}: {what}, {world.finished():,} finished, {world.lag():,} open", flush=True)
    return done


def histories(
    world: OrderedWorld,
    made: list[Order],
    records: dict[int, dict[int, tuple[int, bytes | None]]],
    story: Story,
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
            world.letters_hold or bool(story.holding),
            timedelta(milliseconds=WAIT_MS),
        )
        for partition, here in records.items()
    }


def check(
    world: OrderedWorld, made: list[Order], told: list[str], story: Story | None = None
) -> dict[int, History]:
    """Hold the outputs, the consumer's ledger and the dead letters to the journal, and the journal to the rule."""
    story = story or Story()
    records = world.records()
    replayed = histories(world, made, records, story)
    numbers = {number for here in records.values() for number, _ in here.values()}
    assert numbers == {each.number for each in made}
    for partition, history in replayed.items():
        key_of = {offset: key for offset, (_, key) in records[partition].items()}
        assert history.overtaken(key_of, story.ordered) == [], f"partition {partition}"
        assert history.waits == [], f"partition {partition}"
        assert history.most_leases == 1 or not story.always, f"partition {partition}"
        finished = history.accepted.keys() | history.given_up.keys()
        assert set(key_of) <= finished, (
            f"partition {partition}: {sorted(set(key_of) - finished)[:9]} are lost"
        )
        assert not history.accepted.keys() & history.given_up.keys()
        too_many = [
            (at, keys)
            for at, keys in history.fresh
            for since, until, most in story.few_keys
            if since < at < until and keys >= most
        ]
        assert too_many == [], f"partition {partition}: leased with too many open keys"
    assert held_back(records, replayed, story) == []
    rows = check_rows(world, records, replayed, story)
    check_finished(world, rows, records, replayed, story)
    assert State(world.database).figures.verify() == []
    left = sa.text("select count(*) as rows from sharequeue.open_key_records")
    assert world.database.rows(left)[0]["rows"] == 0
    given_up = sum(len(each.given_up.keys() & records[at].keys()) for at, each in replayed.items())
    told.append(
        f"order by key, {world.output.kind}, seed {SEED}: {len(numbers):,} records, {len(rows):,} rows of runs,"
        f" {len(world.consumed('committed')):,} accepted by consumers, {given_up:,} dead letters,"
        f" {sum(each.leases for each in replayed.values()):,} leases; {world.killed} kills and pauses"
    )
    return replayed


def check_rows(
    world: OrderedWorld,
    records: dict[int, dict[int, tuple[int, bytes | None]]],
    replayed: dict[int, History],
    story: Story,
) -> list[Row]:
    """Each row is there once, of the lease that the journal names, and not before an earlier row of its key; return
    all rows."""
    rows = world.output.rows(replayed)
    again = [row for row in rows if row.lease_id > story.redone.get(row.partition, 0)]
    before = [row for row in rows if 0 < row.lease_id <= story.redone.get(row.partition, 0)]
    replaced = [row for row in rows if row.lease_id < 0]
    assert {(row.partition, row.offset) for row in replaced} <= story.published
    assert not {(row.partition, row.offset) for row in again} & story.published
    for some in (again, before, replaced):
        assert doubled(some) == []
        last: dict[tuple[int, bytes], int] = defaultdict(lambda: -1)
        for row in some:
            assert records[row.partition][row.offset] == (row.number, row.key)
            if some is again:
                assert replayed[row.partition].accepted[row.offset].lease_id in (None, row.lease_id)
            if row.key is not None and story.always and some is not replaced:
                before_it = last[row.partition, row.key]
                assert before_it < row.offset, f"{row.key!r}: {row} after {before_it}"
                last[row.partition, row.key] = row.offset
    if story.always:
        assert world.output.seen_too_early(rows) == []
    return rows


def check_finished(
    world: OrderedWorld,
    rows: list[Row],
    records: dict[int, dict[int, tuple[int, bytes | None]]],
    replayed: dict[int, History],
    story: Story,
) -> None:
    """Each accepted record is in the output or was accepted by a consumer, each other one is one dead letter."""

    def of_records(places: Callable[[History], Mapping[int, object]]) -> set[Place]:
        return {
            (partition, offset)
            for partition, history in replayed.items()
            for offset in places(history)
            if offset in records[partition]
        }

    def once(places: set[Place]) -> set[Place]:
        return {at for at in places if at[0] not in story.redone and at not in story.published}

    written = {(row.partition, row.offset) for row in rows}
    now = {(row.partition, row.offset) for row in rows if row.lease_id > story.redone.get(row.partition, 0)}
    accepted, given_up = of_records(lambda each: each.accepted), of_records(lambda each: each.given_up)
    confirmed = world.consumed("committed")
    assert {at for at, times in Counter(confirmed).items() if times > 1} <= {
        at for at in confirmed if at[0] in story.redone
    }, "a consumer accepted a record twice"
    assert not once(set(confirmed)) & written
    assert not story.always or world.consumed("together") == [], "a poll returned two records of a key"
    assert written | set(confirmed) <= accepted
    assert accepted - now - story.published <= set(world.consumed("handed")), "accepted, but in no output"
    letters = Counter(
        (letter.source_partition, letter.source_offset)
        for letter in read_dead_letters(world.settings, world.letters)
    )
    assert set(letters) == given_up
    assert {at for at, times in letters.items() if times > 1} <= {
        at for at in given_up if at[0] in story.redone
    }


def held_back(
    records: dict[int, dict[int, tuple[int, bytes | None]]], replayed: dict[int, History], story: Story
) -> list[tuple[int, int, int]]:
    """Return what was accepted behind a dead letter of its key while dead letters held their keys."""
    found = []
    for partition, history in replayed.items():
        for since, until in story.holding:
            firsts: dict[bytes, tuple[int, datetime]] = {}
            for offset, (_, key) in sorted(records[partition].items()):
                if key is None:
                    continue
                letter = history.given_up.get(offset)
                if letter is not None and since < letter.at < until:
                    firsts.setdefault(key, (offset, letter.at))
                accepted = history.accepted.get(offset)
                if accepted is not None and key in firsts and firsts[key][1] < accepted.at < until:
                    found.append((partition, firsts[key][0], offset))
    return found


@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", ["files", "postgres", "delta", "iceberg"])
def test_no_record_overtakes_another_of_its_key(
    stack_home: Path, tmp_path: Path, told: list[str], kind: Kind
) -> None:
    """Two runs and a consumer are killed and stopped at random, and so are Postgres, the broker and the service. Each
    record is accepted once or becomes one dead letter; within a key none is accepted, and none appears in the output,
    while an earlier one is open."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    size, made = sizes(), orders(sizes(), SEED)
    with ordered_world(stack_home, tmp_path, "ordered", size, SEED, kind) as world:
        done = chaos(world, made, size.kills)
        until_done(world)
        world.output.stop()
        check(world, made, told)
        told.append(f"  {dict(done)}; {world.output.times:,} looks at the table meanwhile")


@pytest.mark.timeout(0)
def test_a_dead_letter_holds_its_key_until_an_operator_acts(
    stack_home: Path, tmp_path: Path, told: list[str]
) -> None:
    """The same, with `sharequeue.order.on.dead.letter = hold`: what is behind a dead letter is accepted only after an
    operator has redriven or discarded it."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    size, made = sizes(), orders(sizes(), SEED)
    configs = {"sharequeue.order.on.dead.letter": "hold"}
    with ordered_world(stack_home, tmp_path, "held", size, SEED, configs=configs) as world:
        began = State(world.database).now()
        done = chaos(world, made, size.kills)
        until_held(world)
        acted = State(world.database).now()
        held = list(read_dead_letters(world.settings, world.letters))
        assert held
        world.repaired.touch()
        while world.lag() != 0:
            world.command("dlq", "discard", world.letters, "--cause", "exhausted", "--execute", "--yes")
            world.command("dlq", "redrive", world.letters, "--cause", "rejected", "--execute", "--yes")
            world.advance(QUIET_S)
        until_done(world)
        check(world, made, told, Story(holding=[(began, acted)]))
        told.append(f"  {dict(done)}; {len(held)} letters held their keys")


@pytest.mark.timeout(0)
def test_the_order_is_switched_off_and_on_while_they_work(
    stack_home: Path, tmp_path: Path, told: list[str]
) -> None:
    """Nothing is lost or doubled by it, and no lease that was acquired under `key` lets a record overtake another,
    also where the earlier one was leased or failed before the switch."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    size, made = sizes(), orders(sizes(), SEED)
    with ordered_world(stack_home, tmp_path, "switched", size, SEED) as world:
        operator = Operator(world, made)
        done = chaos(world, made, size.kills, operator.switch)
        until_done(world)
        check(world, made, told, Story(ordered=operator.ordered, always=False))
        told.append(f"  {dict(done)}, order switched {size.kills} times")


@pytest.mark.timeout(0)
def test_an_operator_changes_everything_while_they_work(
    stack_home: Path, tmp_path: Path, told: list[str]
) -> None:
    """Between the kills an operator lets dead letters hold their keys and go on, lowers the number of open keys and
    raises it, sends dead letters to another topic, discards some, replays and publishes, and resets a partition to
    its beginning. The order holds all the time, and each of these does what its page says."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    size, made = sizes(), orders(sizes(), SEED)
    with ordered_world(stack_home, tmp_path, "operated", size, SEED) as world:
        operator = Operator(world, made)
        done = chaos(world, made, size.kills, operator.act)
        operator.finish()
        until_done(world)
        story = Story(
            holding=operator.holding,
            few_keys=operator.few_keys,
            redone=operator.redone,
            published=operator.published,
        )
        replayed = check(world, made, told, story)
        few = sum(
            since < at < until
            for history in replayed.values()
            for at, _ in history.fresh
            for since, until, _ in operator.few_keys
        )
        told.append(
            f"  {dict(done)}; operator: {dict(operator.done)}; {operator.check_redriven()} letters sent to another"
            f" topic, {operator.check_published()} rows published, {few} leases of new records with few open keys"
        )
