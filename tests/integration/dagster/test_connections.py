"""How a run reaches Dagster's own database."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest
import sqlalchemy as sa

from sharequeue.dagster import connections
from sharequeue.local import dagster_ui
from sharequeue.local.home import Home
from sharequeue.settings import Settings


@pytest.fixture
def instance(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """Give the stack's instance, as a run has it."""
    folder = dagster_ui.prepare(Home.at(settings.home))
    for name, value in dagster_ui.addresses(settings).items():
        monkeypatch.setenv(name, value)
    with dg.DagsterInstance.from_config(str(folder)) as opened:
        yield opened


def test_a_run_keeps_its_connections_and_outlives_their_end(
    instance: dg.DagsterInstance, settings: Settings
) -> None:
    """Many events go over one connection; one that Postgres has ended is made again, and no event is lost."""
    connections.keep_connections(instance)
    made: list[int] = []
    engine: sa.Engine = instance.event_log_storage._engine  # type: ignore[attr-defined]
    sa.event.listen(engine, "connect", lambda *_: made.append(1))

    def report(number: int) -> None:
        instance.report_runless_asset_event(dg.AssetMaterialization("kept", metadata={"number": number}))

    report(0)
    made.clear()
    for number in range(1, 5):
        report(number)
    assert not made
    with engine.connect() as connection:
        kept = connection.execute(sa.text("select pg_backend_pid()")).scalar_one()
    beside = sa.create_engine(settings.dagster_url)
    with beside.begin() as connection:
        connection.execute(sa.text("select pg_terminate_backend(:pid, 5000)"), {"pid": kept})
    beside.dispose()
    report(5)
    assert len(made) == 1
    found = instance.fetch_materializations(dg.AssetKey("kept"), limit=10).records
    numbers = [each.asset_materialization.metadata["number"].value for each in found[:6]]  # type: ignore[union-attr]
    assert numbers == [5, 4, 3, 2, 1, 0]
    connections.keep_connections(instance)
    assert engine is instance.event_log_storage._engine  # type: ignore[attr-defined]


def test_an_instance_without_postgres_is_left_as_it_is() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        connections.keep_connections(instance)
