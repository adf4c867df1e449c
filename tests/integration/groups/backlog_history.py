"""A group that is assigned by backlog, whose members come and go. Each knows what heartbeats told it, no more."""

from __future__ import annotations

import random
from collections.abc import Iterable

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatRequest, heartbeat
from sharequeue.kafka.topics import Topics
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from sharequeue.words.values import SharePartition
from tests import single
from tests.waiting import pass_time

GROUP = "g"
PARTITIONS = {"t": 5, "u": 3}
KEPT = 1.5
"""Times the mean load, up to which what members have stays (`docs/howto/service.md`)."""
MOST = 2.5
"""Times the mean load that nobody has more than."""
SESSION_S = 60

Pair = tuple[str, int]


class Group:
    """The members, and what each was told."""

    def __init__(self, database: Database, topics: Topics, seed: int) -> None:
        self._database, self._state = database, State(database)
        self._coordinator = Coordinator(database, topics, rebalance_interval=0)
        self._draw = random.Random(seed)  # noqa: S311 - a draw of a test
        self._named = 0
        self._epochs: dict[str, int] = {}
        self._silent: set[str] = set()
        self.told: dict[str, frozenset[Pair]] = {}
        self.lags = {(topic, n): 0 for topic, many in PARTITIONS.items() for n in range(many)}
        self._ends = dict(self.lags)
        self.moved = 0
        alter_group_configs(
            database,
            GROUP,
            {
                "share.assignors": "backlog",
                "share.assignment.interval.ms": 0,
                "share.session.timeout.ms": SESSION_S * 1000,
            },
        )
        for topic, n in self.lags:
            self._state.initialize(SharePartition(GROUP, topic, n), topic, 0, 1)
            self._wait_for(topic, n, 0)

    def _wait_for(self, topic: str, partition: int, lag: int) -> None:
        """The log goes on, and its start too, so that so much is left to do."""
        self.lags[topic, partition] = lag
        end = self._ends[topic, partition] = self._ends[topic, partition] + lag
        single.observe(self._state, SharePartition(GROUP, topic, partition), topic, end - lag, end, end)

    def _beat(self, member: str, epoch: int) -> None:
        full = tuple(PARTITIONS) if epoch == JOIN_EPOCH else None
        answer = heartbeat(
            self._database, HeartbeatRequest(GROUP, member, epoch, subscribed_topic_names=full)
        )
        assert answer.error_code == 0, answer
        if epoch == LEAVE_EPOCH:
            del self._epochs[member], self.told[member]
            return
        self._epochs[member] = answer.member_epoch
        if answer.assignment is not None:
            self.told[member] = frozenset(
                (each["topic_name"], partition)
                for each in answer.assignment
                for partition in each["partitions"]
            )
        else:
            assert member in self.told, "a new member is told what it has"

    def all_beat(self) -> None:
        """Everybody is told what it has now."""
        for member, epoch in list(self._epochs.items()):
            self._beat(member, epoch)

    def step(self, most: int) -> None:
        """Somebody joins, leaves, or falls silent; or what waits has shifted."""
        draw = self._draw
        kinds = ("join", "leave", "fall silent", "shift")
        kind = draw.choices(kinds, (45, 35, 5, 15) if len(self._epochs) < most else (0, 80, 5, 15))[0]
        if not self._epochs or (len(self._epochs) < 2 and kind != "shift"):
            kind = "join"
        if kind == "join":
            self._named += 1
            self._beat(f"m{self._named}", JOIN_EPOCH)
        elif kind == "leave":
            self._beat(draw.choice(list(self._epochs)), LEAVE_EPOCH)
        elif kind == "fall silent":
            gone = draw.choice(list(self._epochs))
            pass_time(self._database, SESSION_S / 2)
            del self._epochs[gone]
            self.all_beat()
            pass_time(self._database, SESSION_S / 2 + 1)
            del self.told[gone]
            self._coordinator.settle()
        else:
            self._shift()
        self.all_beat()
        self.check()

    def _shift(self) -> None:
        before = dict(self.told)
        topic, partition = self._draw.choice(list(self.lags))
        factor = self._draw.choice((0, 2, 10, 1000))
        lag = min(10**9, self.lags[topic, partition] * factor + self._draw.randrange(100))
        self._wait_for(topic, partition, lag)
        stays = bool(before) and self.load() <= KEPT
        self._coordinator.settle()
        self.all_beat()
        if stays:
            assert self.told == before, "it was well enough as it was"
        self.moved += sum(len(before[member] ^ self.told[member]) for member in before)

    def sharers(self) -> dict[Pair, list[str]]:
        """Who works on each share-partition, as they were told."""
        return {place: [member for member, has in self.told.items() if place in has] for place in self.lags}

    def load(self) -> float:
        """What the member has to do that has most, in means."""
        sharers = self.sharers()
        mean = sum(lag + 1 for lag in self.lags.values()) / len(self.told)
        return max(_load(has, self.lags, sharers) for has in self.told.values()) / mean

    def check(self) -> None:
        """What the documentation promises, of what the members were told."""
        sharers = self.sharers()
        assert all(sharers.values()), f"nobody works on {[at for at, who in sharers.items() if not who]}"
        assert all(self.told.values()), "a member has nothing"
        assert self.load() <= MOST


def _load(has: Iterable[Pair], lags: dict[Pair, int], sharers: dict[Pair, list[str]]) -> float:
    return sum((lags[place] + 1) / len(sharers[place]) for place in has)
