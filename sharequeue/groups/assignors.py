"""Assign share-partitions to members.

Kafka's SimpleAssignor ("simple", the only one a share group has) as a pure function: balance first, then
stickiness. With M members over P share-partitions each is shared by s = ceil(M / P) members, so up to M = P a
share group is divided like a consumer group, and beyond it members share. Mirrors R-GR-11 to
R-GR-13 (`SimpleHomogeneousAssignmentBuilder`, `SimpleHeterogeneousAssignmentBuilder`). Where Kafka picks among
equals at random, this picks by order, so that the same input has the same result. Which share-partitions
may be assigned, and when, is decided elsewhere in `groups`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

Assignment = dict[str, frozenset[int]]
"""The ids of the share-partitions of each member, by member id."""


def assign(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Mapping[str, Collection[int]],
    current: Mapping[str, Collection[int]],
) -> Assignment:
    """Return the target assignment of a group: one entry per member, empty ones included.

    `subscriptions`: the topics of each member, in the order in which members are served. `partitions`: the ids of the
    assignable share-partitions of each topic. `current`: the present assignment; unknown members and ids in it are
    ignored.
    """
    topics = {frozenset(subscribed).intersection(partitions) for subscribed in subscriptions.values()}
    subscribed_to = frozenset[str]().union(*topics)
    if len(topics) <= 1:
        pool = sorted({share_partition for topic in subscribed_to for share_partition in partitions[topic]})
        return _balance(list(subscriptions), pool, current)
    merged: dict[str, set[int]] = {member: set() for member in subscriptions}
    for topic in sorted(subscribed_to):
        subscribers = [member for member, subscribed in subscriptions.items() if topic in subscribed]
        for member, share in _balance(subscribers, sorted(partitions[topic]), current).items():
            merged[member] |= share
    return {member: frozenset(share) for member, share in merged.items()}


def desired_sharing(members: int, partitions: int) -> int:
    """Return how many members share each share-partition: ceil(M / P), 0 without either."""
    return -(-members // partitions) if partitions else 0


def desired_sizes(members: int, partitions: int) -> list[int]:
    """Return how many share-partitions the i-th member gets: they add up to s·P and differ by one at most."""
    total = desired_sharing(members, partitions) * partitions
    return [-(-total * (i + 1) // members) + (-total * i // members) for i in range(members)]


def _balance(
    members: Sequence[str], pool: Sequence[int], current: Mapping[str, Collection[int]]
) -> Assignment:
    sharing = desired_sharing(len(members), len(pool))
    assignable = set(pool)
    held = {member: assignable.intersection(current.get(member, ())) for member in members}
    # Members that hold most get the larger sizes: by order alone there would be needless moves. Among members that
    # hold the same number, Kafka's order decides.
    dealt = dict(zip(members, desired_sizes(len(members), len(pool)), strict=True))
    by_holding = sorted(members, key=lambda member: (-len(held[member]), -dealt[member]))
    largest_first = sorted(dealt.values(), reverse=True)
    sizes = dict(zip(by_holding, largest_first, strict=True))
    sharers = Counter(share_partition for share in held.values() for share_partition in share)

    # Members above their size first give up what too many share: each such removal helps with both limits.
    for member in members:
        surplus = len(held[member]) - sizes[member]
        for share_partition in sorted(held[member], key=lambda p: (-sharers[p], p))[: max(surplus, 0)]:
            held[member].remove(share_partition)
            sharers[share_partition] -= 1
    for share_partition in pool:
        holders = [member for member in members if share_partition in held[member]]
        for member in holders[sharing:]:
            held[member].remove(share_partition)
            sharers[share_partition] -= 1

    _fill(pool, held, sizes, sharers, sharing)
    return {member: frozenset(share) for member, share in held.items()}


def _fill(
    pool: Sequence[int],
    held: Mapping[str, set[int]],
    sizes: Mapping[str, int],
    sharers: Counter[int],
    sharing: int,
) -> None:
    """Deal each share-partition to members below their size, round-robin, until it has enough of them.

    A share-partition that all members below their size already have stays short of members, as in Kafka.
    """
    waiting = [member for member in held if len(held[member]) < sizes[member]]
    turn = 0
    for share_partition in pool:
        while sharers[share_partition] < sharing:
            takers = [waiting[(turn + i) % len(waiting)] for i in range(len(waiting))]
            taker = next((member for member in takers if share_partition not in held[member]), None)
            if taker is None:
                break
            held[taker].add(share_partition)
            sharers[share_partition] += 1
            position = waiting.index(taker)
            if len(held[taker]) == sizes[taker]:
                waiting.pop(position)
                turn = position
            else:
                turn = position + 1
