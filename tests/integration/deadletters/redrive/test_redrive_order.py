"""A redrive keeps the order of each key: the partition that a record came from, and the order of its offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import REDRIVE_FROM, Selection
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.kafka.headers import headers_of
from tests import single
from tests.fixtures.deadletters import GivenUp, Stop, execute
from tests.fixtures.logs import add_partitions
from tests.fixtures.stack import MakeTopic
from tests.integration.deadletters.redrive.test_redrive import committed

Make = Callable[..., GivenUp]
PARTITIONS = 3
RECORDS = 36


def put_back(case: GivenUp, topic: str | None = None) -> dict[int, list[int]]:
    """Return the numbers of the records that were put back, by the partition they are in, in their order there."""
    found: dict[int, list[int]] = defaultdict(list)
    for message in sorted(committed(case, topic or case.topic), key=lambda one: one.offset() or 0):
        if any(name == REDRIVE_FROM for name, _ in headers_of(message)):
            found[message.partition() or 0].append(int((message.value() or b"").split()[1]))
    return dict(found)


def of_partition(partition: int) -> list[int]:
    """Return the numbers of the records that were produced into a partition."""
    return list(range(partition, RECORDS, PARTITIONS))


def make_redrive(case: GivenUp, **options: object) -> Redrive:
    return Redrive(case.settings, case.database, case.dead_letter_topic, Selection(), **options)  # type: ignore[arg-type]


@pytest.fixture
def case(given_up: Make) -> GivenUp:
    """Give letters of three partitions that were given up later half first, in a dead-letter topic that grew."""
    case = given_up(partitions=PARTITIONS, dlq_partitions=2, copy=True)
    case.produce(RECORDS, partitions=PARTITIONS)
    topic_id = case.topics.describe([case.topic])[case.topic].topic_id
    leases = []
    for partition, log in case.topics.offsets(case.topic).items():
        source = SharePartition(case.group, case.topic, partition)
        case.state.initialize(source, topic_id, 0, 1)
        single.observe(case.state, source, topic_id, log.log_start, log.log_end, log.last_stable_offset)
        lease = single.acquire(case.state, source, "member", None, RECORDS)
        assert lease is not None
        leases.append(lease)
    half = RECORDS // PARTITIONS // 2
    for first, end in ((half, 2 * half), (0, half)):
        for lease in leases:
            single.acknowledge(case.state, lease, {AcknowledgeType.REJECT: OffsetSet.of((first, end))})
        case.writer().write()
        if first:
            add_partitions(case.topics, case.dead_letter_topic, PARTITIONS)
    assert len(case.letters()) == RECORDS
    return case


def test_records_go_back_in_their_order_to_the_partition_they_came_from(case: GivenUp) -> None:
    """Though their keys were placed by another hash, were given up in another order, the dead-letter topic got more
    partitions, and the redrive is killed in the middle."""
    left = [4]

    def die(reached: BatchStep) -> None:
        left[0] -= reached == "marked"
        if reached == "marked" and left[0] == 0:
            raise Stop(reached)

    with pytest.raises(Stop):
        execute(make_redrive(case, batch_records=5, on_step=die))
    execute(make_redrive(case, batch_records=5))
    assert put_back(case) == {partition: of_partition(partition) for partition in range(PARTITIONS)}


def test_records_may_be_placed_by_their_keys(case: GivenUp) -> None:
    """A redrive that was asked to is carried on in the same way, whatever the next one is asked."""

    def die(reached: BatchStep) -> None:
        if reached == "opened":
            raise Stop(reached)

    with pytest.raises(Stop):
        execute(make_redrive(case, by_key=True, on_step=die, batch_records=RECORDS))
    execute(make_redrive(case))
    found = put_back(case)
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(RECORDS))
    assert found != {partition: of_partition(partition) for partition in range(PARTITIONS)}


def test_a_partition_that_the_topic_does_not_have_is_said_and_placed_by_key(
    case: GivenUp, make_topic: MakeTopic
) -> None:
    """The others go to their own; each key stays in one partition, in its order."""
    smaller = make_topic(2)
    plan = make_redrive(case, target=smaller).plan()
    assert (plan.letters, plan.by_key) == (RECORDS, RECORDS // PARTITIONS)
    assert make_redrive(case).plan().by_key == 0
    execute(make_redrive(case, target=smaller))
    found = put_back(case, smaller)
    assert {number for numbers in found.values() for number in numbers} == set(range(RECORDS))
    for partition in range(2):
        assert set(of_partition(partition)) <= set(found[partition])
        for source in range(PARTITIONS):
            mine = [number for number in found[partition] if number % PARTITIONS == source]
            assert mine == sorted(mine)
