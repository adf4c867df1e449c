"""The project's own queues, each run as Dagster does: the job of its defs.yaml, in one process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from pipelines.ledger import samples as ledger
from pipelines.ledger.pipeline import PAYMENTS, REFUNDS
from pipelines.reminders import samples as reminders
from pipelines.reminders.pipeline import TOPIC as REMINDERS
from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.dagster.testing import load_share_group
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from tests.fixtures.stack import REPOSITORY

pytestmark = pytest.mark.slow

RunQueue = Callable[..., tuple[dg.ExecuteInProcessResult, dg.DagsterInstance]]


@pytest.fixture
def run_queue(
    settings: Settings, service: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> RunQueue:
    """Give a function that runs the job of one of the project's queues to its end."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    monkeypatch.setenv("SHAREQUEUE_SERVICE_URL", service)
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(tmp_path))
    instance = dg.DagsterInstance.ephemeral()

    def run(queue: str, **bounds: Any) -> tuple[dg.ExecuteInProcessResult, dg.DagsterInstance]:
        component = load_share_group(REPOSITORY, queue)
        made = share_group_defs(component, execute=component.execute)
        defs = dg.Definitions.merge(made, share_group_resources())
        config = {"ops": {f"{component.name}_accepted": {"config": bounds}}}
        job = defs.resolve_job_def(component.name)
        return job.execute_in_process(run_config=config, instance=instance), instance

    return run


def figures(result: dg.ExecuteInProcessResult, key: str) -> dict[str, Any]:
    events = result.get_asset_materialization_events()
    (made,) = [
        event.materialization for event in events if event.asset_key == dg.AssetKey.from_user_string(key)
    ]
    return {name: value.value for name, value in made.metadata.items()}


def columns_of(made: dict[str, Any]) -> set[str]:
    """The names of an output's columns."""
    return {column.name for column in made["dagster/column_schema"].columns}


def observed_topics(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """The observations of topics in a run, by topic."""
    observations = [
        event.asset_observation_data.asset_observation
        for event in result.all_events
        if event.event_type_value == "ASSET_OBSERVATION"
    ]
    return {
        each.asset_key.path[1]: {name: value.value for name, value in each.metadata.items()}
        for each in observations
    }


@pytest.fixture
def entries(settings: Settings, topics: Topics) -> Any:
    """Give two topics with 100 payments and ten refunds."""
    ledger.prepare(settings)
    ledger.produce(settings, 100)
    yield
    for topic in (PAYMENTS, REFUNDS, ledger.DEAD_LETTER_TOPIC):
        topics.delete(topic)


def test_payments_and_refunds_are_in_the_table_once(
    entries: None, run_queue: RunQueue, database: Database, state: State, settings: Settings
) -> None:
    """Several topics, one group, one table: rows and acknowledgements agree, what is foreign is a dead letter, and a
    second run finds nothing. The run's tags lead from it to its leases. A run of one partition leaves the others."""
    ran: list[tuple[dg.ExecuteInProcessResult, dg.DagsterInstance]] = []

    def together(key: str, name: str) -> int:
        return sum(figures(each, key)[name] for each, _ in ran)

    # The service assigns a topic once it has seen it: a first run may have had one of the two.
    while together("ledger/accepted", "leased_records") < 110:
        assert len(ran) < 5
        ran.append(run_queue("ledger"))
    result, instance = ran[-1]
    assert result.success
    rows = database.rows(
        sa.text("select topic, count(*) as rows, sum(amount) as amount from accounting.ledger group by topic")
    )
    booked = {row["topic"]: (row["rows"], row["amount"]) for row in rows}
    paid = sum(number + 1 for number in range(100) if number % 50)
    back = sum(number + 1 for number in range(0, 100, 10) if number % 50)
    assert booked == {PAYMENTS: (98, Decimal(paid)), REFUNDS: (8, Decimal(-back))}
    made = figures(result, "ledger/accepted")
    assert made["dagster/row_count"] == 106
    assert made["dagster/table_name"].endswith(".accounting.ledger")
    assert made["dagster/uri"].startswith("postgresql://")
    assert "@" not in made["dagster/uri"]
    assert "amount" in columns_of(made)
    assert "outcome" not in columns_of(made)
    lineage = made["dagster/column_lineage"].deps_by_column
    assert {dep.column_name for dep in lineage["account"]} == {"value"}
    assert {dep.column_name for dep in lineage["amount"]} == {"topic", "value"}
    assert {dep.asset_key.path[-1] for dep in lineage["booked_at"]} == {PAYMENTS, REFUNDS}
    seen = observed_topics(result)
    assert set(seen) == {PAYMENTS, REFUNDS, ledger.DEAD_LETTER_TOPIC}
    assert (seen[PAYMENTS]["partitions"] + seen[REFUNDS]["partitions"]) == 4
    assert seen[PAYMENTS]["written_offsets"] == 100
    assert seen[ledger.DEAD_LETTER_TOPIC]["log_offsets"] >= 4
    assert together("ledger/dead_letters", "new_records") == 4
    assert figures(result, "ledger/dead_letters")["dagster/row_count"] == 4
    assert figures(result, "ledger/spso_and_lag")["lag_records"] == 0
    failed = [check.check_name for check in result.get_asset_check_evaluations() if not check.passed]
    assert failed == []

    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert together("ledger/accepted", "leased_records") == 110
    assert run.tags["sharequeue/group"] == "ledger"
    assert run.tags["sharequeue/member"] == figures(result, "ledger/accepted")["member"]
    assert run.tags["sharequeue/leases"]

    again, _ = run_queue("ledger")
    assert figures(again, "ledger/accepted")["leased_records"] == 0
    assert figures(again, "ledger/dead_letters")["new_records"] == 0

    ledger.produce(settings, 20)
    part = figures(run_queue("ledger")[0], "ledger/accepted")
    assert part["leased_records"] + sum(each.lag for each in state.figures.describe("ledger")) == 22
    assert state.figures.verify("ledger") == []


def test_a_reminder_waits_until_it_is_due(
    settings: Settings, topics: Topics, run_queue: RunQueue, state: State, tmp_path: Path
) -> None:
    """What is due is written, what is no reminder is a dead letter, and what is due later waits for its time."""
    reminders.prepare(settings)
    now = datetime.now(UTC)
    later = now + timedelta(hours=1)
    dues = [now - timedelta(minutes=1), later, now.replace(tzinfo=None)]
    reminders.produce(settings, [{"whom": "ada", "what": "tea", "due": due.isoformat()} for due in dues])
    result, _ = run_queue("reminders")
    assert result.success
    made = figures(result, "reminders/accepted")
    assert made["dagster/uri"] == (tmp_path / "reminders").as_uri()
    assert {"topic", "outcome"} < columns_of(made)
    assert [made[f"{name}_records"] for name in ("leased", "accepted", "released", "rejected")] == [
        3,
        1,
        1,
        1,
    ]
    (status,) = state.figures.describe("reminders")
    assert (status.waiting, status.lag) == (1, 1)
    assert status.waiting_until is not None
    assert abs(status.waiting_until - later) < timedelta(seconds=1)
    for topic in (REMINDERS, reminders.DEAD_LETTER_TOPIC):
        topics.delete(topic)
