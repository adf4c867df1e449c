"""The SimpleAssignor: sizes, sharing and stickiness, by property and by what a Kafka 4.4.0 broker gave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharequeue.groups.assignors import Assignment, assign, desired_sharing, desired_sizes

Step = tuple[str, str, list[str]]
Shape = tuple[list[int], int, int, int]

MEMBERS = st.integers(0, 12)
PARTITIONS = st.integers(0, 15)


def homogeneous(members: int, partitions: int, current: Assignment | None = None) -> Assignment:
    subscriptions = {f"m{i:02}": ["t"] for i in range(members)}
    return assign(subscriptions, {"t": range(partitions)}, current or {})


def sharers(assignment: Assignment, share_partition: int) -> int:
    return sum(share_partition in share for share in assignment.values())


def pairs(assignment: Assignment) -> set[tuple[str, int]]:
    return {(member, share_partition) for member, share in assignment.items() for share_partition in share}


@given(members=st.integers(1, 40), partitions=st.integers(0, 60))
@pytest.mark.rule("R-GR-11")
def test_sizes_add_up_and_differ_by_one(members: int, partitions: int) -> None:
    """The members' sizes d_i sum to s·P and differ by at most one (R-GR-11)."""
    sizes = desired_sizes(members, partitions)
    assert sum(sizes) == desired_sharing(members, partitions) * partitions
    assert max(sizes) - min(sizes) <= 1


@given(members=MEMBERS, partitions=PARTITIONS)
@pytest.mark.rule("R-GR-11")
def test_a_first_assignment_is_full(members: int, partitions: int) -> None:
    """From nothing, every share-partition has exactly s members and every member its size."""
    assignment = homogeneous(members, partitions)
    assert sorted(len(share) for share in assignment.values()) == sorted(desired_sizes(members, partitions))
    assert {sharers(assignment, p) for p in range(partitions)} <= {desired_sharing(members, partitions)}


@given(
    members=st.integers(1, 10),
    partitions=st.integers(1, 12),
    current=st.dictionaries(
        st.integers(0, 12).map(lambda i: f"m{i:02}"), st.frozensets(st.integers(0, 14)), max_size=10
    ),
)
@pytest.mark.rule("R-GR-12")
def test_from_any_state_bounds_hold(members: int, partitions: int, current: Assignment) -> None:
    """Whatever was held before: no member above ⌈s·P/M⌉, no share-partition above s, none without a member."""
    assignment = homogeneous(members, partitions, current)
    assert max(len(share) for share in assignment.values()) <= max(desired_sizes(members, partitions))
    for share_partition in range(partitions):
        assert 1 <= sharers(assignment, share_partition) <= desired_sharing(members, partitions)
    assert list(assignment) == [f"m{i:02}" for i in range(members)]


@given(members=MEMBERS, partitions=PARTITIONS)
@pytest.mark.rule("R-GR-12")
def test_assigning_again_moves_nothing(members: int, partitions: int) -> None:
    """An assignment that is balanced stays as it is."""
    first = homogeneous(members, partitions)
    assert homogeneous(members, partitions, first) == first


@given(members=st.integers(1, 12), partitions=PARTITIONS)
def test_a_joiner_costs_no_more_than_its_share(members: int, partitions: int) -> None:
    """With a share-partition each (M < P), a joiner takes its own size from the others, and nothing else moves."""
    before = homogeneous(members, partitions)
    after = homogeneous(members + 1, partitions, before)
    if members < partitions:
        newcomer = f"m{members:02}"
        assert len(pairs(before) - pairs(after)) == len(after[newcomer])
        assert pairs(after) - pairs(before) == {(newcomer, p) for p in after[newcomer]}


@given(members=st.integers(2, 12), partitions=st.integers(1, 15), leaver=st.integers(0, 11))
def test_a_leaving_member_moves_no_unshared_assignment(members: int, partitions: int, leaver: int) -> None:
    """While each share-partition has one member (M ≤ P), who stays keeps everything when another leaves."""
    before = homogeneous(members, partitions)
    gone = f"m{leaver % members:02}"
    stayed = {member: ["t"] for member in before if member != gone}
    after = assign(stayed, {"t": range(partitions)}, before)
    if members <= partitions:
        assert {pair for pair in pairs(before) if pair[0] != gone} <= pairs(after)


@pytest.mark.rule("R-GR-13")
def test_each_topic_is_divided_among_its_own_subscribers() -> None:
    """With different subscriptions a topic's share-partitions go to its subscribers only, balanced per topic."""
    assignment = assign({"a": ["t"], "b": ["t", "u"], "c": []}, {"t": [1, 2], "u": [3, 4]}, {})
    assert assignment["c"] == frozenset()
    assert len(assignment["a"] & {1, 2}) == len(assignment["b"] & {1, 2}) == 1
    assert {3, 4} <= assignment["b"]


def test_a_topic_that_is_not_there_is_left_out() -> None:
    """Subscribing to an unknown topic assigns nothing of it and disturbs nothing else."""
    assert assign({"a": ["t", "ghost"]}, {"t": [1]}, {}) == {"a": frozenset({1})}
    assert assign({}, {"t": [1]}, {"old": [1]}) == {}


# After each step: sorted sizes, pairs kept, pairs taken from members that stayed, pairs added.
RECORDED: dict[str, tuple[dict[str, range], list[tuple[Step, Shape]]]] = {
    "4 partitions, 5 join": (
        {"t": range(4)},
        [
            (("join", "m1", ["t"]), ([4], 0, 0, 4)),
            (("join", "m2", ["t"]), ([2, 2], 2, 2, 2)),
            (("join", "m3", ["t"]), ([1, 1, 2], 3, 1, 1)),
            (("join", "m4", ["t"]), ([1, 1, 1, 1], 3, 1, 1)),
            (("join", "m5", ["t"]), ([1, 1, 2, 2, 2], 4, 0, 4)),
        ],
    ),
    "3 partitions, 7 join": (
        {"t": range(3)},
        [
            (("join", "m1", ["t"]), ([3], 0, 0, 3)),
            (("join", "m2", ["t"]), ([1, 2], 2, 1, 1)),
            (("join", "m3", ["t"]), ([1, 1, 1], 2, 1, 1)),
            (("join", "m4", ["t"]), ([1, 1, 2, 2], 3, 0, 3)),
            (("join", "m5", ["t"]), ([1, 1, 1, 1, 2], 5, 1, 1)),
            (("join", "m6", ["t"]), ([1, 1, 1, 1, 1, 1], 5, 1, 1)),
            (("join", "m7", ["t"]), ([1, 1, 1, 1, 1, 2, 2], 6, 0, 3)),
        ],
    ),
    "4 partitions, 4 join, 3 leave": (
        {"t": range(4)},
        [
            (("join", "m1", ["t"]), ([4], 0, 0, 4)),
            (("join", "m2", ["t"]), ([2, 2], 2, 2, 2)),
            (("join", "m3", ["t"]), ([1, 1, 2], 3, 1, 1)),
            (("join", "m4", ["t"]), ([1, 1, 1, 1], 3, 1, 1)),
            (("leave", "m2", []), ([1, 1, 2], 3, 0, 1)),
            (("leave", "m1", []), ([2, 2], 2, 0, 2)),
            (("leave", "m4", []), ([4], 2, 0, 2)),
        ],
    ),
    "2 partitions, 5 join, 4 leave": (
        {"t": range(2)},
        [
            (("join", "m1", ["t"]), ([2], 0, 0, 2)),
            (("join", "m2", ["t"]), ([1, 1], 1, 1, 1)),
            (("join", "m3", ["t"]), ([1, 1, 2], 2, 0, 2)),
            (("join", "m4", ["t"]), ([1, 1, 1, 1], 3, 1, 1)),
            (("join", "m5", ["t"]), ([1, 1, 1, 1, 2], 4, 0, 2)),
            (("leave", "m1", []), ([1, 1, 1, 1], 4, 0, 0)),
            (("leave", "m3", []), ([1, 1, 2], 3, 0, 1)),
            (("leave", "m5", []), ([1, 1], 2, 1, 0)),
            (("leave", "m2", []), ([2], 1, 0, 1)),
        ],
    ),
    "two topics, one subscription": (
        {"t": range(2), "u": range(2, 4)},
        [
            (("join", "m1", ["t", "u"]), ([4], 0, 0, 4)),
            (("join", "m2", ["t", "u"]), ([2, 2], 2, 2, 2)),
            (("join", "m3", ["t", "u"]), ([1, 1, 2], 3, 1, 1)),
        ],
    ),
}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.rule("R-GR-12")
def test_figures_of_a_real_broker(name: str) -> None:
    """Sizes and numbers of moved pairs are those recorded from Kafka 4.4.0, step by step."""
    topics, steps = RECORDED[name]
    subscriptions: dict[str, list[str]] = {}
    current: Assignment = {}
    for (action, member, subscribed), shape in steps:
        if action == "join":
            subscriptions[member] = subscribed
        else:
            del subscriptions[member]
        before, current = pairs(current), assign(subscriptions, topics, current)
        after = pairs(current)
        taken = {pair for pair in before - after if pair[0] in subscriptions}
        sizes = sorted(len(share) for share in current.values())
        assert (sizes, len(before & after), len(taken), len(after - before)) == shape, (action, member)
