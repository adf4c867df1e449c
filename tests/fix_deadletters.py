"""Records that were given up, ready to become dead letters: a source topic, a group, and a way to reject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from sharequeue.database import Database
from sharequeue.deadletters.batches import OnStep, Step
from sharequeue.deadletters.writer import DeadLetter, DeadLetterWriter, read_dead_letters
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs, alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, SharePartition

if TYPE_CHECKING:
    from tests.fix_stack import MakeTopic

Coordinates = tuple[str | None, int | None, int | None]
GROUP_CONFIGS = {"share.partition.max.record.locks": "2000000", "share.auto.offset.reset": "earliest"}


@dataclass
class GivenUp:
    """A group over one source topic, and what was rejected of it so far."""

    settings: Settings
    database: Database
    group: str
    topic: str
    dead_letter_topic: str
    expected: Counter[Coordinates] = field(default_factory=Counter)

    @property
    def state(self) -> State:
        return State(self.database)

    @property
    def topics(self) -> Topics:
        return Topics(self.settings)

    def renamed(self, group: str) -> GivenUp:
        """The same topics and configs for another group, which has given nothing up yet."""
        other = GivenUp(self.settings, self.database, group, self.topic, self.dead_letter_topic)
        configs = GroupConfigs.load(self.database, self.group)
        alter_group_configs(self.database, group, {name: configs.values[name] for name in configs.own})
        return other

    def configure(self, **changes: str) -> GroupConfigs:
        """Alter the group's configs, written with underscores."""
        named = {name.replace("_", "."): value for name, value in changes.items()}
        return alter_group_configs(self.database, self.group, named)

    def produce(
        self,
        count: int,
        partitions: int = 1,
        value: Callable[[int], bytes | None] = lambda number: b"value %d" % number,
        headers: Sequence[tuple[str, bytes | None]] = (),
        **producer: str,
    ) -> None:
        """Put records into the source topic, turn by turn into its partitions, in one transaction if it has an id."""
        client = Producer(client_config(self.settings, **producer))
        if producer:
            client.init_transactions(30)
            client.begin_transaction()
        for number in range(count):
            client.produce(
                self.topic,
                key=b"key %d" % number,
                value=value(number),
                partition=number % partitions,
                headers=list(headers),
            )
        if producer:
            client.commit_transaction(30)
        client.flush(30)

    def reject(self, offsets: dict[int, OffsetSet] | None = None) -> None:
        """Reject what is there, or what is named, of every partition; the rest is accepted."""
        state, topics = self.state, self.topics
        topic_id = topics.describe([self.topic])[self.topic].topic_id
        for partition, log in topics.offsets(self.topic).items():
            source = SharePartition(self.group, self.topic, partition)
            state.initialize(source, topic_id, 0, 1)
            state.observe(source, topic_id, log.log_start, log.log_end, log.last_stable_offset)
            while (lease := state.acquire(source, "member", None, 1_000_000)) is not None:
                rejected = (
                    lease.offsets if offsets is None else lease.offsets & offsets.get(partition, OffsetSet())
                )
                outcomes = {
                    AcknowledgeType.REJECT: rejected,
                    AcknowledgeType.ACCEPT: lease.offsets - rejected,
                }
                state.acknowledge(lease, {kind: held for kind, held in outcomes.items() if held})
                self.expected.update((self.topic, partition, offset) for offset in rejected.iter_offsets())

    def writer(
        self,
        *,
        auto_create: bool = False,
        on_step: OnStep | None = None,
        batch_records: int = 5000,
        **bounds: Any,
    ) -> DeadLetterWriter:
        """A writer for the group as it is configured now."""
        service = ServiceConfigs.of(
            {"errors.deadletterqueue.auto.create.topics.enable": "true" if auto_create else "false"}
        )
        configs = GroupConfigs.load(self.database, self.group)
        return DeadLetterWriter(
            self.settings,
            self.state,
            self.group,
            configs,
            service=service,
            batch_records=batch_records,
            on_step=on_step,
            **bounds,
        )

    def letters(self) -> list[DeadLetter]:
        """The group's letters in its topic, read committed."""
        return [
            letter
            for letter in read_dead_letters(self.settings, self.dead_letter_topic)
            if letter.group == self.group
        ]

    def assert_each_exactly_once(self) -> None:
        """Every record rejected so far is one letter, nothing else is, and the state knows it."""
        found = Counter((x.source_topic, x.source_partition, x.source_offset) for x in self.letters())
        doubled = {at: count for at, count in found.items() if count > 1}
        assert not doubled, f"written more than once: {doubled}"
        assert found == self.expected
        archived = Counter(
            (run.share_partition.topic, run.share_partition.partition, offset)
            for run in self.state.dead_letters.written(self.group)
            for offset in run.offsets.iter_offsets()
        )
        assert archived == self.expected
        for status in self.state.figures.describe(self.group):
            assert (status.spso, status.lag, status.archiving) == (status.log_end, 0, 0)
        assert self.state.figures.verify(self.group) == []


class Stop(Exception):
    """Ends a drain at a step, as an error of any kind would."""


def stop_at(step: Step, time_of_it: int = 1) -> Callable[[Step, SharePartition], None]:
    """A step hook that fails the drain the n-th time that this step is reached."""
    left = [time_of_it]

    def on_step(reached: Step, source: SharePartition) -> None:
        left[0] -= reached == step
        if reached == step and left[0] == 0:
            raise Stop(step)

    return on_step


def alter_configs(settings: Settings, kind: ResourceType, name: str, **configs: str) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in configs.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = AdminClient(client_config(settings))
    admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.fixture
def given_up(
    settings: Settings, database: Database, group: str, make_topic: MakeTopic
) -> Callable[..., GivenUp]:
    """Give a function that makes a source topic and a group: `given_up(partitions=1, dlq_partitions=2, copy=False)`.

    `dlq_partitions=0` leaves the dead-letter topic to be created; further arguments are its configs.
    """

    def make(partitions: int = 1, dlq_partitions: int = 2, copy: bool = False, **dlq_configs: str) -> GivenUp:
        topic = make_topic(partitions)
        dead_letter_topic = f"dlq.{topic}"
        if dlq_partitions:
            opted_in = {"errors_deadletterqueue_group_enable": "true", **dlq_configs}
            make_topic(dlq_partitions, name=dead_letter_topic, **opted_in)
        made = GivenUp(settings, database, group, topic, dead_letter_topic)
        alter_group_configs(
            database,
            group,
            {
                **GROUP_CONFIGS,
                "errors.deadletterqueue.topic.name": dead_letter_topic,
                "errors.deadletterqueue.copy.record.enable": "true" if copy else "false",
            },
        )
        return made

    return make
