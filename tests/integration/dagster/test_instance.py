"""How a run reaches Dagster's own database."""

from __future__ import annotations

import dagster as dg
import sqlalchemy as sa

from sharequeue.dagster import instance
from sharequeue.domain.settings import Settings


def test_a_run_keeps_its_connections_and_outlives_their_end(
    stack_instance: dg.DagsterInstance, settings: Settings
) -> None:
    """Many events go over one connection; one that Postgres has ended is made again, and no event is lost."""
    instance.keep_connections(stack_instance)
    made: list[int] = []
    engine: sa.Engine = stack_instance.event_log_storage._engine  # type: ignore[attr-defined]
    sa.event.listen(engine, "connect", lambda *_: made.append(1))

    def report(number: int) -> None:
        stack_instance.report_runless_asset_event(
            dg.AssetMaterialization("kept", metadata={"number": number})
        )

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
    found = stack_instance.fetch_materializations(dg.AssetKey("kept"), limit=10).records
    numbers = [each.asset_materialization.metadata["number"].value for each in found[:6]]  # type: ignore[union-attr]
    assert numbers == [5, 4, 3, 2, 1, 0]
    instance.keep_connections(stack_instance)
    assert engine is stack_instance.event_log_storage._engine  # type: ignore[attr-defined]


def test_an_instance_without_postgres_is_left_as_it_is() -> None:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        instance.keep_connections(ephemeral)
