"""The assignor by backlog: coverage, no starvation, balance, stickiness and sameness, by property."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sharequeue.groups.assignors import Assignment
from sharequeue.groups.backlog_assignor import LOAD_KEPT, WORTH_MOVING, assign_by_backlog

LAGS = st.lists(st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 10**9)), min_size=1, max_size=20)
HELD = st.dictionaries(
    st.integers(0, 12).map(lambda i: f"m{i:02}"), st.frozensets(st.integers(0, 25)), max_size=12
)


FEW = settings(max_examples=40)


def assigned(members: int, lags: list[int], current: Assignment | None = None) -> Assignment:
    subscriptions = {f"m{i:02}": ["t"] for i in range(members)}
    return assign_by_backlog(subscriptions, {"t": range(len(lags))}, current or {}, dict(enumerate(lags)))


def sharers(assignment: Assignment, share_partition: int) -> int:
    return sum(share_partition in share for share in assignment.values())


def largest_load(assignment: Assignment, lags: list[int]) -> float:
    """Of the member that has most: its parts of what it holds. A share-partition weighs one more than its lag."""
    return max(sum((lags[p] + 1) / sharers(assignment, p) for p in share) for share in assignment.values())


def mean(members: int, lags: list[int]) -> float:
    return sum(lag + 1 for lag in lags) / members


def moves(before: Assignment, after: Assignment) -> int:
    return sum(len(share - before.get(member, frozenset())) for member, share in after.items())


@FEW
@given(members=st.integers(1, 12), lags=LAGS, current=HELD)
def test_nobody_starves(members: int, lags: list[int], current: Assignment) -> None:
    """Whatever was held before: each share-partition has a member, and each member a share-partition."""
    assignment = assigned(members, lags, current)
    assert set(assignment) == {f"m{i:02}" for i in range(members)}
    assert frozenset[int]().union(*assignment.values()) == set(range(len(lags)))
    assert all(assignment.values())


@FEW
@given(members=st.integers(1, 12), lags=LAGS, current=HELD)
def test_the_backlog_is_balanced(members: int, lags: list[int], current: Assignment) -> None:
    """From nothing nobody's load is above twice the mean; else no further above than moving would be worth."""
    assert largest_load(assigned(members, lags), lags) <= 2.0001 * mean(members, lags)
    bound = 2.0001 / WORTH_MOVING * mean(members, lags)
    assert largest_load(assigned(members, lags, current), lags) <= bound


@FEW
@given(members=st.integers(1, 12), lags=LAGS, current=HELD)
def test_no_more_share_than_need_be(members: int, lags: list[int], current: Assignment) -> None:
    """From nothing a share-partition has as many members as its part of the backlog is of theirs, rounded up."""
    assignment, weight = assigned(members, lags), sum(lags) + len(lags)
    for p, lag in enumerate(lags):
        assert sharers(assignment, p) == -(-members * (lag + 1) // weight)
    total = sum(map(len, assigned(members, lags, current).values()))
    assert total <= 2 * members + len(lags)


@FEW
@given(members=st.integers(1, 12), lags=LAGS, current=HELD)
def test_again_moves_nothing(members: int, lags: list[int], current: Assignment) -> None:
    """What was computed is kept when it is computed again; and the same input has the same result."""
    assignment = assigned(members, lags, current)
    assert assigned(members, lags, assignment) == assignment
    assert assigned(members, lags, current) == assignment


@FEW
@given(
    members=st.integers(1, 12), lags=LAGS, percent=st.lists(st.integers(90, 110), min_size=20, max_size=20)
)
def test_small_shifts_move_nothing(members: int, lags: list[int], percent: list[int]) -> None:
    """While no load is far above the mean, a tenth more or less in each share-partition moves nothing."""
    assignment = assigned(members, lags)
    shifted = [(lag * each) // 100 for lag, each in zip(lags, percent, strict=False)]
    if largest_load(assignment, shifted) <= LOAD_KEPT * mean(members, shifted):
        assert assigned(members, shifted, assignment) == assignment


@FEW
@given(members=st.integers(2, 12), lags=LAGS, leaver=st.integers(0, 11))
def test_one_leaves(members: int, lags: list[int], leaver: int) -> None:
    """When one leaves, no more has to move than what nobody else holds, unless a load would be too high."""
    before = assigned(members, lags)
    gone = f"m{leaver % members:02}"
    rest = {member: share for member, share in before.items() if member != gone}
    subscriptions = {member: ["t"] for member in rest}
    after = assign_by_backlog(subscriptions, {"t": range(len(lags))}, rest, dict(enumerate(lags)))
    covered = frozenset[int]().union(*rest.values()) == set(range(len(lags)))
    if covered and largest_load(rest, lags) <= LOAD_KEPT * mean(members - 1, lags):
        assert after == rest


def test_one_of_many_leaves() -> None:
    """Where each has one and nothing waits, what the leaver had moves, and nothing else."""
    before = assigned(50, [0] * 50)
    rest = {member: share for member, share in before.items() if member != "m07"}
    after = assign_by_backlog({member: ["t"] for member in rest}, {"t": range(50)}, rest, {})
    assert moves(rest, after) == 1


def test_more_members_where_more_waits() -> None:
    """Ten members, ten share-partitions, nine tenths of the backlog in one: nine share it, and nobody has none."""
    lags = [9000, *[111] * 9]
    assignment = assigned(10, lags)
    assert sharers(assignment, 0) == 9
    assert largest_load(assignment, lags) <= 1.2 * mean(10, lags)


def test_without_a_backlog_it_is_as_the_simple_one() -> None:
    """Where nothing waits, members are divided evenly, and what they have stays."""
    assert sorted(map(len, assigned(4, [0] * 10).values())) == [2, 2, 3, 3]
    assert {sharers(assigned(10, [0] * 4), p) for p in range(4)} == {3}
    first = assigned(3, [0] * 6)
    assert assigned(3, [0] * 6, first) == first


@FEW
@given(
    subscriptions=st.dictionaries(
        st.integers(0, 9).map(lambda i: f"m{i}"), st.sets(st.sampled_from("abcd")), min_size=1, max_size=10
    ),
    lags=st.lists(st.integers(0, 1000), min_size=12, max_size=12),
    current=st.dictionaries(
        st.integers(0, 9).map(lambda i: f"m{i}"), st.frozensets(st.integers(0, 14)), max_size=10
    ),
)
def test_different_subscriptions(
    subscriptions: dict[str, set[str]], lags: list[int], current: Assignment
) -> None:
    """Members get share-partitions of their topics alone; all of those that anybody subscribes to have a member, and
    all who subscribe to one that is there have a share-partition."""
    partitions = {topic: range(4 * place, 4 * place + 4) for place, topic in enumerate("abc")}
    assignment = assign_by_backlog(subscriptions, partitions, current, dict(enumerate(lags)))
    for member, share in assignment.items():
        own = {p for topic in subscriptions[member] for p in partitions.get(topic, ())}
        assert share <= own
        assert bool(share) == bool(own)
    wanted = {p for topics in subscriptions.values() for topic in topics for p in partitions.get(topic, ())}
    assert frozenset[int]().union(*assignment.values()) == wanted
    assert assign_by_backlog(subscriptions, partitions, assignment, dict(enumerate(lags))) == assignment
