"""A redrive to the source says who else gets the records, and can be for one share group alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import RedriveRefused, Selection
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import SharePartition
from sharequeue.state import State
from tests.fixtures.deadletters import GivenUp, execute
from tests.fixtures.pipelines import Holder, RunJob, all_accepted, job_of

Make = Callable[..., GivenUp]


def rejected_by_one_of_two(given_up: Make) -> tuple[GivenUp, GivenUp]:
    """Two groups on one topic of six records: the first rejected two of them, the second accepted all."""
    case = given_up(copy=True)
    other = case.renamed(f"{case.group}-other")
    case.produce(6)
    case.reject({0: OffsetSet.of((2, 4))})
    other.reject({})
    case.writer().write()
    return case, other


def test_the_other_groups_are_named(given_up: Make) -> None:
    """The plan of a redrive to the source names every other group of that topic; for one group alone, none."""
    case, other = rejected_by_one_of_two(given_up)
    plan = Redrive(case.settings, case.database, case.dead_letter_topic, Selection()).plan()
    assert plan.other_groups == {case.topic: (other.group,)}
    alone = Redrive(case.settings, case.database, case.dead_letter_topic, Selection(), only_group=case.group)
    assert alone.plan().other_groups == {}


@pytest.mark.parametrize(("name", "said"), [("{}x", "Did you mean"), ("elsewhere", "no share-partition")])
def test_a_group_that_would_not_get_them_is_refused(given_up: Make, name: str, said: str) -> None:
    """A typo, or a group that does not read the topic, would hide the records from everybody."""
    case, _ = rejected_by_one_of_two(given_up)
    if name == "elsewhere":
        name = f"{case.group}-elsewhere"
        case.renamed(name)
    work = Redrive(
        case.settings,
        case.database,
        case.dead_letter_topic,
        Selection(),
        only_group=name.format(case.group),
    )
    with pytest.raises(RedriveRefused, match=said):
        execute(work)
    assert not case.topics.offsets(case.topic)[0].log_end > 6


def test_runs_of_other_groups_pass_over_the_records(given_up: Make, run_job: RunJob, state: State) -> None:
    """The group that it is for accepts the two records again; the other ends them as gaps and is drained too."""
    case, other = rejected_by_one_of_two(given_up)
    report = execute(
        Redrive(case.settings, case.database, case.dead_letter_topic, Selection(), only_group=case.group)
    )
    assert report.sent == 2
    case.produce(1)
    for group, accepted, gaps in ((case.group, 3, 1), (other.group, 1, 3)):
        at = SharePartition(group, case.topic, 0)
        done = run_job(job_of(group, case.topic, all_accepted, headers=False), Holder([at]))
        assert (done.accepted, done.gaps, done.without_row) == (accepted, gaps, 0)
        (status,) = state.figures.describe(group)
        assert (status.lag, status.acquired) == (0, 0)
