"""What runs tell the state about themselves: which pipeline they are, and which losses they have reported."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from tests import single
from tests.waiting import pass_time

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
TOPICS = ("t",)


@pytest.fixture
def at_configs() -> dict[str, str | int]:
    return {"sharequeue.retry.backoff.ms": 0}


@pytest.fixture
def queue(private_database: Database, at: SharePartition) -> State:
    """Give the state of a group of one share-partition, `at`, whose log has the offsets 0 to 999."""
    return State(private_database)


def removed(state: State, at: SharePartition, log_start: int) -> None:
    single.observe(state, at, "id", log_start, 1000, 1000)


def test_each_loss_is_reported_once(queue: State, at: SharePartition) -> None:
    """Whoever has observed it, the service between two runs or a run; other topics are left alone."""
    assert queue.runs.losses("g", TOPICS) == 0
    removed(queue, at, 50)
    assert queue.runs.losses("g", ["another"]) == 0
    assert queue.runs.losses("g", TOPICS) == 50
    assert queue.runs.losses("g", TOPICS) == 0
    removed(queue, at, 50)
    assert queue.runs.losses("g", TOPICS) == 0
    removed(queue, at, 70)
    removed(queue, at, 75)
    assert queue.runs.losses("g", TOPICS) == 25
    assert queue.runs.losses("none", TOPICS) == 0


def test_what_was_processed_is_not_lost(queue: State, at: SharePartition) -> None:
    """Of 50 removed: 4 accepted, 3 rejected, 3 released, 10 held, 30 never delivered. What the holder accepts is not
    lost; the rest of what he held is, once he has ended."""
    first = single.acquire(queue, at, "m", None, 10)
    held = single.acquire(queue, at, "m", None, 10)
    assert first is not None
    assert held is not None
    of = {ACCEPT: OffsetSet.of((0, 4)), REJECT: OffsetSet.of((4, 7)), RELEASE: OffsetSet.of((7, 10))}
    single.acknowledge(queue, first, of)
    removed(queue, at, 50)
    assert queue.runs.losses("g", TOPICS) == 33
    single.acknowledge(queue, held, {ACCEPT: OffsetSet.of((10, 16)), RELEASE: OffsetSet.of((16, 20))})
    (status,) = queue.figures.describe("g")
    assert (status.lost_records, queue.runs.losses("g", TOPICS)) == (37, 4)
    assert queue.runs.losses("g", TOPICS) == 0


def test_what_a_dead_holder_held_is_lost_when_its_lock_lapses(
    queue: State, at: SharePartition, private_database: Database
) -> None:
    """They were not lost while it might have accepted them."""
    assert single.acquire(queue, at, "m", None, 10) is not None
    removed(queue, at, 50)
    assert queue.runs.losses("g", TOPICS) == 40
    pass_time(private_database, 60)
    queue.sweep()
    assert queue.runs.losses("g", TOPICS) == 10


def test_two_that_ask_at_once_share_the_losses(queue: State, at: SharePartition) -> None:
    """Each record is in one answer."""
    removed(queue, at, 500)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: queue.runs.losses("g", TOPICS), range(8)))
    assert sorted(answers) == [0] * 7 + [500]


def test_the_plain_description_shows_losses(
    queue: State, at: SharePartition, private_database: Database
) -> None:
    """Without --verbose."""
    removed(queue, at, 50)
    url = private_database.engine.url.render_as_string(hide_password=False)
    shown = CliRunner().invoke(command, ["groups", "describe", "--group", "g", "--database-url", url])
    assert shown.exit_code == 0, shown.output
    assert "LOST-RECORDS" in shown.stdout
    assert shown.stdout.rstrip().splitlines()[-1].split()[-1] == "50"


def test_a_group_remembers_its_pipeline(queue: State, private_database: Database) -> None:
    """The same one may come as often as it likes; another one only in the place of the one it names; who replaced
    whom is in the audit log. A group that is deleted forgets it."""
    runs = queue.runs
    assert runs.claim("none", "a:f") is None
    alter_group_configs(private_database, "empty", {})
    assert [runs.claim("empty", name) for name in ("a:f", "a:f", "b:g")] == ["a:f"] * 3
    assert runs.claim("empty", "b:g", replaces="c:h") == "a:f"
    assert runs.claim("empty", "b:g", replaces="a:f") == "b:g"
    assert runs.claim("empty", "b:g", replaces="a:f") == "b:g"  # an option that stays
    assert runs.claim("empty", "a:f") == "b:g"
    acts = private_database.rows(
        sa.text("select act, before, after from sharequeue.audit_trail where group_id = 'empty'")
    )
    assert [dict(act) for act in acts if act["act"] == "replace_pipeline"] == [
        {"act": "replace_pipeline", "before": {"pipeline": "a:f"}, "after": {"pipeline": "b:g"}}
    ]
    assert queue.administration.delete_group("empty")
    alter_group_configs(private_database, "empty", {})
    assert runs.claim("empty", "a:f") == "a:f"


def test_of_two_pipelines_that_come_at_once_one_stays(queue: State, at: SharePartition) -> None:
    """Every one of them is told the same name."""
    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(lambda number: queue.runs.claim("g", f"m:f{number}"), range(8)))
    assert len(answers) == 1
