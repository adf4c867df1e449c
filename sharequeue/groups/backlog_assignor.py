"""Assign share-partitions to members by lag.

The assignor `backlog`, which KIP-1226 names as the next step: a pure function beside the simple one (`assignors`).
The weight of a share-partition is its lag plus one. With weight w of the total W it gets ceil(M·w / W) of the M
members, so a larger lag is shared by more members. Each share-partition has a member, and each member a
share-partition. A member's load is its part of the weights that it holds, if the members of a share-partition share
it evenly. If all subscribe to the same topics, no member's load is more than 2.5 times the mean W / M.

Sticky: members keep what they have while every share-partition and every member is served and no load is more than
1.5 times the mean, or while moving would not reduce the largest load by a fifth. Moves are made in order, so that the
same input has the same result.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from sharequeue.groups.assignors import Assignment

LOAD_KEPT = 1.5
"""The multiple of the mean load that a member may have before anything moves."""
WORTH_MOVING = 0.8
"""Moves must reduce the largest load to this part of what it was."""


def assign_by_backlog(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Mapping[str, Collection[int]],
    current: Mapping[str, Collection[int]],
    lags: Mapping[int, int],
) -> Assignment:
    """Return the target assignment of a group: one entry per member, empty ones included.

    The arguments are those of `assignors.assign`; `lags` has the records that wait in each share-partition, by id.
    A share-partition that is not in it has none.
    """
    group = _Group(subscriptions, partitions, lags)
    held = {
        member: {p for p in current.get(member, ()) if p in group.takers and member in group.takers[p]}
        for member in subscriptions
    }
    if not group.serves_all(held):
        held = group.dealt(held)
    largest = group.largest_load(held)
    while largest > group.kept:
        better = group.dealt(held)
        lower = group.largest_load(better)
        if lower > WORTH_MOVING * largest:
            break
        held, largest = better, lower
    return {member: frozenset(share) for member, share in held.items()}


class _Group:
    """Members, share-partitions and their weights, while one assignment is made."""

    def __init__(
        self,
        subscriptions: Mapping[str, Collection[str]],
        partitions: Mapping[str, Collection[int]],
        lags: Mapping[int, int],
    ) -> None:
        subscribers: dict[str, frozenset[str]] = {
            topic: frozenset(member for member, topics in subscriptions.items() if topic in topics)
            for topic in partitions
        }
        self.takers = {
            p: subscribers[topic]
            for topic in sorted(partitions)
            for p in partitions[topic]
            if subscribers[topic]
        }
        self.members = [m for m in subscriptions if any(m in each for each in subscribers.values())]
        self.order = {member: place for place, member in enumerate(subscriptions)}
        self.weights = {p: lags.get(p, 0) + 1 for p in sorted(self.takers)}
        total = sum(self.weights.values())
        self.kept = LOAD_KEPT * total / max(len(self.members), 1)
        self.shared_by = {
            p: min(len(self.takers[p]), -(-len(self.members) * weight // total))
            for p, weight in self.weights.items()
        }

    def sharers(self, held: Mapping[str, Collection[int]]) -> dict[int, list[str]]:
        """Return the members that have each share-partition."""
        found: dict[int, list[str]] = {p: [] for p in self.weights}
        for member, share in held.items():
            for p in share:
                found[p].append(member)
        return found

    def largest_load(self, held: Mapping[str, Collection[int]]) -> float:
        """Return the largest load of a member."""
        sharers = self.sharers(held)
        loads = (sum(self.weights[p] / len(sharers[p]) for p in sorted(share)) for share in held.values())
        return max(loads, default=0.0)

    def serves_all(self, held: Mapping[str, Collection[int]]) -> bool:
        """Return whether each share-partition has a member and each member a share-partition.

        It is also false if the share-partitions have far too many members.
        """
        sharers = self.sharers(held)
        return (
            all(sharers.values())
            and all(held[member] for member in self.members if self._has_any(member))
            and sum(map(len, sharers.values())) <= 2 * len(self.members) + len(self.weights)
        )

    def _has_any(self, member: str) -> bool:
        return any(member in takers for takers in self.takers.values())

    def dealt(self, held: Mapping[str, Collection[int]]) -> dict[str, set[int]]:
        """Deal all share-partitions to the members.

        A member keeps a share-partition as long as its load stays within the limit. Share-partitions that then have
        too few members go to the members with the least load, those with the largest part per member first.
        """
        had = self.sharers(held)
        result: dict[str, set[int]] = {member: set() for member in held}
        loads = dict.fromkeys(held, 0.0)
        parts = {p: weight / self.shared_by[p] for p, weight in self.weights.items()}
        in_order = sorted(parts, key=lambda p: (-parts[p], p))
        missing = dict(self.shared_by)
        for p in in_order:
            keep = [m for m in had[p] if loads[m] + parts[p] <= self.kept]
            for member in sorted(keep, key=lambda m: (loads[m], self.order[m]))[: missing[p]]:
                result[member].add(p)
                loads[member] += parts[p]
                missing[p] -= 1
        waiting = [
            (loads[member], len(result[member]), self.order[member], member) for member in self.members
        ]
        heapq.heapify(waiting)
        for p in in_order:
            aside = []
            while missing[p]:
                entry = heapq.heappop(waiting)
                member = entry[-1]
                if member not in self.takers[p] or p in result[member]:
                    aside.append(entry)
                    continue
                result[member].add(p)
                loads[member] += parts[p]
                missing[p] -= 1
                aside.append((loads[member], len(result[member]), self.order[member], member))
            for entry in aside:
                heapq.heappush(waiting, entry)
        for member in self.members:
            if not result[member] and self._has_any(member):
                self._serve(member, result, loads, parts)
        return result

    def _serve(
        self, member: str, held: Mapping[str, set[int]], loads: dict[str, float], parts: Mapping[int, float]
    ) -> None:
        """Serve a member that has no share-partition.

        It takes over the smallest part of the busiest member that has several, else it shares the largest one.
        """
        own = {p for p, takers in self.takers.items() if member in takers}
        givers = [giver for giver in self.members if len(held[giver]) > 1 and not own.isdisjoint(held[giver])]
        if givers:
            giver = min(givers, key=lambda m: (-loads[m], self.order[m]))
            given = min(own & held[giver], key=lambda p: (parts[p], p))
            held[giver].remove(given)
            loads[giver] -= parts[given]
        else:
            given = min(own, key=lambda p: (-parts[p], p))
        held[member].add(given)
        loads[member] += parts[given]
