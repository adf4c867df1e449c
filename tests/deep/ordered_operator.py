"""An operator of the ledger of ordered keys: changes configs, dead letters, outputs and offsets while others work,
and knows what must hold afterwards."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sharequeue.database import Database
from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.state import State
from tests.deep.ordered_world import LOCK_MS, QUIET_S, Order, OrderedWorld
from tests.waiting import wait_until

FEW_KEYS = 3
REPLAYED = 300
"""Records, at most."""
_LAST_LEASE = sa.text("select last_value from sharequeue.leases_lease_id_seq")


def last_lease(database: Database) -> int:
    """Return a number that no later lease is below."""
    return int(database.rows(_LAST_LEASE)[0]["last_value"])


@dataclass
class Operator:
    """Acts, and keeps a record of it."""

    world: OrderedWorld
    made: list[Order]
    on: list[tuple[int, int]] = field(default_factory=list)
    """The first and the last lease of each time with order, but the present one."""
    since: int | None = 0
    """The lease after which the order was switched on."""
    holding: list[tuple[datetime, datetime]] = field(default_factory=list)
    few_keys: list[tuple[datetime, datetime, int]] = field(default_factory=list)
    redone: dict[int, int] = field(default_factory=dict)
    published: frozenset[tuple[int, int]] = frozenset()
    done: Counter[str] = field(default_factory=Counter)
    _holds_since: datetime | None = None
    _few_since: datetime | None = None
    _deck: list[Callable[[], None]] = field(default_factory=list)

    def switch(self) -> str:
        """Switch the order on or off."""
        before = last_lease(self.world.database)
        value = "none" if self.since is not None else "key"
        self._set("sharequeue.order", value)
        if self.since is not None:
            self.on.append((self.since, before))
        self.since = None if self.since is not None else last_lease(self.world.database)
        return value

    def ordered(self, lease_id: int) -> bool:
        """Return whether a lease was acquired under `key`: leases have ascending numbers."""
        more = [] if self.since is None else [(self.since, sys.maxsize)]
        return any(first < lease_id <= last for first, last in [*self.on, *more])

    def act(self) -> str:
        """Do the next thing: hold, few keys, letters, replay, reset; then again what can be repeated."""
        if not self._deck:
            acts = [self.hold, self.limit, self.redrive, self.unlimit, self.discard]
            acts += [self.publish] if not self.published else [self.go_on]
            self._deck = [*acts, *([] if self.redone else [self.reset])][::-1]
        what = self._deck.pop()
        what()
        self.done[what.__name__] += 1
        return what.__name__

    def hold(self) -> None:
        """Let dead letters hold their keys from now on."""
        self._set("sharequeue.order.on.dead.letter", "hold")
        self._holds_since = self._holds_since or self._soon()

    def go_on(self) -> None:
        """Let the keys of dead letters go on."""
        self._acted()
        self._set("sharequeue.order.on.dead.letter", "continue")

    def limit(self) -> None:
        """Allow few open keys."""
        self._set("sharequeue.order.max.open.keys", str(FEW_KEYS))
        self._few_since = self._soon()

    def unlimit(self) -> None:
        """Allow many open keys."""
        if self._few_since is not None:
            self.few_keys.append((self._few_since, State(self.world.database).now(), FEW_KEYS))
        self._few_since = None
        self._set("sharequeue.order.max.open.keys", "100000")

    def redrive(self) -> None:
        """Send the dead letters that there are to another topic."""
        admin = AdminClient(client_config(self.world.settings))
        if self.other not in admin.list_topics(timeout=60).topics:
            admin.create_topics([NewTopic(self.other, 3, 1)])[self.other].result(60)
        self._letters("redrive", "--to", self.other, "--by-key")

    def discard(self) -> None:
        """Give up the dead letters that are left."""
        self._letters("discard")

    def publish(self) -> None:
        """Replay the first records of a partition that has output, and publish them."""
        group = self.world.name
        there = {row.partition for row in State(self.world.database).outputs.counted(group, group)}
        done = {each.partition: each.spso for each in self.world.status() if each.partition in there}
        partition = max(done, key=lambda each: (done[each], -each), default=-1)
        last = min(done.get(partition, 0), REPLAYED) - 1
        if last < 0:
            return
        killing = {each.number for each in self.made if each.kills}
        here = self.world.records()[partition]
        assert not killing & {number for offset, (number, _) in here.items() if offset <= last}
        chosen = f"{group}:{partition}:0-{last}"
        work = "tests.deep.ordered_worker:work"
        self.world.command("replay", work, "--offsets", chosen, "--name", "again")
        self.world.command("publish", work, "again", "--execute", "--yes")
        self.published = frozenset((partition, offset) for offset in range(last + 1))

    def reset(self) -> None:
        """Let a partition begin again, as its page says: members end, dead letters are written, then the reset."""
        others = {each.partition: each.spso for each in self.world.status()}
        for partition, _ in self.published:
            others.pop(partition, None)
        partition = max(others, key=lambda each: (others[each], -each))
        self.world.stop_all()
        group, at = self.world.name, f"{self.world.name}:{partition}"
        self.world.command("dlq", "write", "--group", group, "--execute", "--yes")
        words = ("offsets", "reset", "--group", group, "--topic", at, "--to-earliest", "--execute", "--yes")

        def begun_again() -> bool:
            try:
                self.world.command(*words)
            except AssertionError as error:
                if "NON_EMPTY_GROUP" not in str(error):
                    raise
                return False
            return True

        # Who was killed is a member until its session expires.
        wait_until(begun_again, QUIET_S)
        self.redone[partition] = last_lease(self.world.database)

    def finish(self) -> None:
        """Leave everything as it was in the beginning."""
        self.unlimit()
        self.go_on()

    @property
    def other(self) -> str:
        """The topic of redriven letters."""
        return f"{self.world.name}.other"

    def check_redriven(self) -> int:
        """Each record of the other topic was a dead letter, with its key, and none is there twice; return how many
        there are."""
        if not self.done["redrive"]:
            return 0
        sent = [each for here in self.world.records(self.other).values() for each in here.values()]
        source = self.world.records()
        letters = {
            source[letter.source_partition or 0][letter.source_offset or 0]
            for letter in read_dead_letters(self.world.settings, self.world.letters)
        }
        assert set(sent) <= letters
        most = 2 if self.redone else 1
        assert max(Counter(sent).values(), default=1) <= most
        return len(sent)

    def check_published(self) -> int:
        """Of the published records those have a row that the replay has accepted, whoever accepted them before;
        return how many have one."""
        orders = {each.number: each for each in self.made}
        source = self.world.records()
        expected = {
            (partition, offset)
            for partition, offset in self.published
            if not orders[source[partition][offset][0]].rejected
            and not orders[source[partition][offset][0]].fails
        }
        rows = self.world.output.rows({})
        found = [(row.partition, row.offset) for row in rows if (row.partition, row.offset) in self.published]
        assert Counter(found) == dict.fromkeys(expected, 1)
        return len(found)

    def _letters(self, what: str, *words: str) -> None:
        self._acted()
        self.world.command("dlq", what, self.world.letters, *words, "--execute", "--yes")

    def _acted(self) -> None:
        if self._holds_since is not None:
            self.holding.append((self._holds_since, State(self.world.database).now()))
        self._holds_since = None

    def _soon(self) -> datetime:
        """Return when every transaction that is open now has surely ended."""
        return State(self.world.database).now() + timedelta(milliseconds=LOCK_MS)

    def _set(self, name: str, value: str) -> None:
        alter_group_configs(self.world.database, self.world.name, {name: value})
