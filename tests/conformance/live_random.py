"""Random steps for live scenarios.

A scenario drawn step by step while the broker goes through it, so that what is acknowledged is what was acquired, and
sometimes is not: batches, transactions, fetches of every kind, acknowledgements whole and in parts, foreign and
malformed ones, lapses, lost connections, changed configs. A seed has one scenario on one broker's behaviour.

One member stays throughout: without any session a broker forgets what it has not written (line 3).
"""

from __future__ import annotations

import random
from typing import Any

from sharequeue.domain.settings import Settings
from tests.conformance.live import did, until_it_fits
from tests.conformance.live_broker import LiveBroker
from tests.conformance.live_steps import (
    EXPIRE,
    Step,
    ack,
    close,
    config,
    join,
    op,
    poll,
    produce,
    release,
    txn,
)
from tests.conformance.scenario import Scenario
from tests.conformance.scenario import Step as Done

FIRST_SEED, SEEDS = 7, 5
"""The ordinary run's: from where, and how many."""
LONG_LOCK_MS = 600_000
TYPES = ("accept", "accept", "release", "release", "reject", "gap", "renew")
MEMBERS = ("m1", "m2")
WATCHER = "m0"
"""The member that stays, and takes nothing."""


class Drawing:
    """One scenario as it is drawn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.partitions = self.random.choice((1, 1, 2))
        self.configs: dict[str, Any] = {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": LONG_LOCK_MS,
            "share.delivery.count.limit": self.random.choice((2, 3, 4, 5, 5, 7, 10)),
            "share.partition.max.record.locks": self.random.choice((100, 2000)),
            # For good: a broker archives what members hold when it changes (line 31).
            "share.isolation.level": self.random.choice(("read_uncommitted", "read_committed")),
        }
        self.held: dict[str, list[list[int]]] = {member: [] for member in MEMBERS}
        """Per member what its fetches returned: partition, first, last."""
        self.gone: set[str] = set()
        self.open: set[str] = set()
        """Members with a share session: without one a broker refuses acknowledgements (line 28)."""
        self.transactions = 0

    def start(self) -> list[Step]:
        """A record in each partition, fetched and accepted: the broker has loaded them."""
        steps: list[Step] = [produce(1, partition=p) for p in range(self.partitions)]
        steps += [join(WATCHER, quiet=True), *(join(member, quiet=True) for member in MEMBERS)]
        for p in range(self.partitions):
            steps += [poll(member=WATCHER, partitions=[p]), ack([p, 0, 0, "accept"], member=WATCHER)]
        return steps

    def next(self) -> list[Step]:
        """What happens next, one step or a few that belong together."""
        kinds = (
            self._produce,
            self._fetch,
            self._acknowledge,
            self._odd,
            self._lapse,
            self._leave,
            self._configure,
        )
        (kind,) = self.random.choices(kinds, (20, 34, 30, 8, 2, 3, 3))
        return kind()

    def saw(self, done: Done) -> None:
        """Remember what a fetch returned."""
        member = done.do.get("member", WATCHER)
        if done.op == "poll":
            self.open.add(member)
        elif done.op in ("drop", "close"):
            self.open.discard(member)
        if done.op == "poll" and member != WATCHER:
            ranges = done.got.get("acquired", [])
            self.held[member] += [[partition, first, last] for _, partition, first, last, _ in ranges]

    def _partition(self) -> int:
        return self.random.randrange(self.partitions)

    def _member(self) -> str:
        return self.random.choice(MEMBERS)

    def _produce(self) -> list[Step]:
        batches = [self.random.randint(1, 8) for _ in range(self.random.randint(1, 3))]
        at = self._partition()
        if self.random.random() < 0.75:
            return [produce(*batches, partition=at)]
        self.transactions += 1
        name = f"x{self.transactions}"
        inside = [produce(*batches, partition=at, txn=name)]
        inside += [produce(2, partition=at)] if self.random.random() < 0.3 else []
        return [txn("begin", name), *inside, txn(self.random.choice(("commit", "abort")), name)]

    def _fetch(self) -> list[Step]:
        most = self.random.choice((1, 2, 3, 5, 8, 20, 500))
        more: dict[str, Any] = {"partitions": [self._partition()], "waitMs": 20}
        if self.random.random() < 0.3:
            more["mode"] = "record_limit"
        elif self.random.random() < 0.3:
            more["batchSize"] = self.random.randint(1, 6)
        member = self._member()
        back = [run for run in self._back(member) if run[0] in more["partitions"]]
        # A broker is still writing them while it fetches: what they release, and the room they make, is of use to the
        # next fetch there, and to this one here (R-ST-9).
        roomy = self.configs["share.partition.max.record.locks"] > 100
        if back and roomy and member in self.open and self.random.random() < 0.3:
            more["acks"] = [[*run[:3], self.random.choice(("accept", "reject", "gap"))] for run in back]
        return [*self._rejoined(member), poll(most, member, **more)]

    def _rejoined(self, member: str) -> list[Step]:
        """A member that closed its session comes back first."""
        if member not in self.gone:
            return []
        self.gone.discard(member)
        return [join(member, quiet=True)]

    def _back(self, member: str) -> list[list[Any]]:
        """Some of what a member was given, whether or not it still has it, in order."""
        found: list[list[Any]] = []
        for partition, first, last in sorted(
            self.random.sample(self.held[member], min(2, len(self.held[member])))
        ):
            begin = self.random.randint(first, last)
            end = self.random.randint(begin, last)
            found.append([partition, begin, end, self.random.choice(TYPES)])
        return found

    def _acknowledge(self) -> list[Step]:
        member = self._member()
        if member not in self.open:
            return self._fetch()
        if self.random.random() < 0.15:
            return [release(member)]
        if self.random.random() < 0.4 and self.held[member]:
            at, first, last = self.held[member].pop(self.random.randrange(len(self.held[member])))
            kinds = [self.random.choice(TYPES[:-1]) for _ in range(first, last + 1)]
            return [ack([at, first, last, kinds], member=member)]
        back = self._back(member)
        return [ack(*back, member=member)] if back else self._fetch()

    def _odd(self) -> list[Step]:
        """What no sane client sends: others' records, past the end, upside down, as many types as fingers."""
        member, other = self.random.sample(MEMBERS, 2)
        if member not in self.open:
            return self._produce()
        at = self._partition()
        first = self.random.randint(0, 30)
        odd: list[list[Any]] = [
            [at, first, first + self.random.randint(0, 5), "accept"],
            [at, first + 3, first, "accept"],
            [at, first, first + 2, ["accept", "release"]],
            [at, first, first, 9],
        ]
        odd += [[p, low, high, "accept"] for p, low, high in self.held[other][-1:]]
        return [ack(self.random.choice(odd), member=member)]

    def _lapse(self) -> list[Step]:
        """Records under a short lock, which lapses; those under a long one stay."""
        member = self._member()
        short, long = (config(share_record_lock_duration_ms=ms) for ms in (1000, LONG_LOCK_MS))
        taken = poll(self.random.choice((1, 5, 500)), member, partitions=[self._partition()], waitMs=20)
        return [*self._rejoined(member), short, taken, EXPIRE, long]

    def _leave(self) -> list[Step]:
        member = self._member()
        if member in self.gone:
            return self._fetch()
        self.held[member] = self.held[member][-2:]  # what is acknowledged later comes late
        if self.random.random() < 0.5:
            return [op("drop", member=member)]
        self.gone.add(member)
        return [close(member)]

    def _configure(self) -> list[Step]:
        changes: list[dict[str, Any]] = [
            {"share_delivery_count_limit": self.random.choice((2, 3, 5, 10))},
            {"share_renew_acknowledge_enable": self.random.choice((True, False))},
        ]
        return [config(**self.random.choice(changes))]


def random_scenario(settings: Settings, seed: int, steps: int) -> Scenario:
    """So many steps, drawn from a seed, on the broker, and looks after them; return all as a recorded scenario."""
    return until_it_fits(lambda: _drawn(settings, Drawing(seed), f"seed {seed}", steps))


def _drawn(settings: Settings, drawing: Drawing, name: str, steps: int) -> Scenario:
    topics, groups = {"t": drawing.partitions}, {"g": drawing.configs}
    done: list[Done] = []
    with LiveBroker(settings, topics, groups, {}) as broker:
        for do in drawing.start():
            done += did(broker, do)
        while steps > 0:
            for do in drawing.next():
                new = did(broker, do)
                drawing.saw(new[0])
                done += new
                steps -= 1
    return Scenario(name, topics, groups, tuple(done))
