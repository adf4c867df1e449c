"""State of one Kafka cluster, a broker of another: whoever talks to both refuses, before anything is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.errors import InconsistentClusterId
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.spark.leased_records import lease
from sharequeue.spark.run import run_rounds
from sharequeue.state import State
from tests import single
from tests.fixtures.pipelines import Holder, all_accepted, job_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = SharePartition("g", "t", 0)
BOTH = "but the state to cluster another"


@pytest.fixture
def state(private_database: Database) -> State:
    """Group g, bound to another cluster, with a dead letter that waits and may be dropped."""
    state = State(private_database)
    state.administration.check_cluster("another")
    alter_group_configs(
        private_database,
        "g",
        {"errors.deadletterqueue.topic.name": "dlq.g", "sharequeue.dead.letter.drop.enable": True},
    )
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 10, 10)
    held = single.acquire(state, AT, "m", None, 1)
    assert held is not None
    single.acknowledge(state, held, {AcknowledgeType.REJECT: OffsetSet.of((0, 1))})
    return state


@pytest.fixture
def astray(state: State, settings: Settings) -> Settings:
    """Settings that lead to that state, and to the broker."""
    url = state.database.engine.url.render_as_string(hide_password=False)
    return settings.replace(database_url=url)


def test_a_run_is_refused(state: State, astray: Settings, topics: Topics) -> None:
    """Before the broker is asked for topics, and before Spark is touched."""
    nobody = cast("SparkSession", object())
    job = job_of("g", "t", all_accepted)
    with pytest.raises(InconsistentClusterId, match=BOTH):
        run_rounds(astray, job, membership=Holder([AT]), state=state, topics=topics, spark=nobody)
    with (
        pytest.raises(InconsistentClusterId, match=BOTH),
        lease("g", ["t"], settings=astray, spark=nobody, membership=Holder([AT])),
    ):
        pass
    assert state.figures.describe("g")[0].acquired == 0


def test_writing_letters_is_refused(state: State, astray: Settings) -> None:
    """Nothing is written there, and nothing dropped because the topic is not there."""
    configs = GroupConfigs.load(state.database, "g")
    with pytest.raises(InconsistentClusterId, match=BOTH):
        DeadLetterWriter(astray, state, "g", configs).write()
    assert state.figures.describe("g")[0].archiving == 1


def test_a_redrive_is_refused(state: State, astray: Settings) -> None:
    """The letters there are of other groups."""
    with pytest.raises(InconsistentClusterId, match=BOTH):
        Redrive(astray, state.database, "dlq.g", Selection())


@pytest.mark.parametrize(
    "arguments",
    [
        ("offsets", "reset", "--group", "g", "--all-topics", "--to-earliest"),
        ("dlq", "redrive", "dlq.g"),
        ("dlq", "discard", "dlq.g"),
        ("dlq", "write", "--group", "g", "--execute", "--yes"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_a_command_is_refused(
    astray: Settings, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """Every command that talks to both."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(astray.home))
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", astray.database_url)
    result = CliRunner().invoke(command, list(arguments))
    assert isinstance(result.exception, InconsistentClusterId), result.output
    assert BOTH in str(result.exception)
