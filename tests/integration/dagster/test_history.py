"""The asset `history`: past days of a group, counted again from the journal by a job."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.local.stack import StackInfo
from sharequeue.state import State
from sharequeue.state.journal import Journal
from tests import single
from tests.fixtures.dagster import share_group
from tests.waiting import set_clock

AT = SharePartition("orders", "orders", 0)


def days_work(state: State, records: int) -> None:
    """Lease so many records; all but three are accepted."""
    lease = single.acquire(state, AT, "m", None, records)
    assert lease is not None
    first = lease.offsets.first
    assert first is not None
    rejected = OffsetSet.of((first, first + 3))
    single.acknowledge(
        state, lease, {AcknowledgeType.REJECT: rejected, AcknowledgeType.ACCEPT: lease.offsets - rejected}
    )


def test_days_without_a_service_are_counted_by_a_run(
    private_database: Database, stack: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two days of work that nobody has counted: the sensor offers exactly these, and requests one run, which shows
    each as it was; a day without a journal is shown as such. What is no day that is over
    stops no other day. After a night without work, no further day is offered; a day with work is offered when it is
    over, and an earlier day when it gets figures."""
    state, journal = State(private_database), Journal(private_database)
    now = state.now().astimezone(UTC)
    # Noon: no midnight comes in between.
    noon = now.replace(hour=12, minute=0) - now
    today = now.date()
    days = [today - timedelta(days=back) for back in (2, 1)]
    set_clock(private_database, noon - timedelta(days=2))
    journal.keep(retention=timedelta(days=7))
    ensure_group(private_database, AT.group_id)
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 1000, 1000)
    days_work(state, 100)
    set_clock(private_database, noon - timedelta(days=1))
    days_work(state, 50)
    set_clock(private_database, noon)
    assert journal.days(AT.group_id) == []

    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    group = share_group(
        "orders", backfill={"start": "2013-01-01"}, automation={"sensor": {"pause_after_failure_seconds": 0}}
    )
    key = dg.AssetKey(["orders", "history"])
    given = share_group_resources(home=str(stack.home))
    resources = dict(given.resources or {})
    defs = dg.Definitions.merge(share_group_defs(group), given)
    job = defs.resolve_job_def("orders_count_days")
    (sensor,) = [s for s in defs.sensors or () if s.name == "orders_history"]
    instance = dg.DagsterInstance.ephemeral()

    def tick() -> Any:
        with dg.build_sensor_context(instance=instance, resources=resources) as context:
            return sensor(context)

    wanted = [day.isoformat() for day in days]
    found = tick()
    (offered,) = found.dynamic_partitions_requests
    assert offered.partition_keys == wanted
    assert tick().run_requests == found.run_requests
    instance.add_dynamic_partitions(offered.partitions_def_name, wanted)
    (request,) = found.run_requests
    (counting,) = request.run_config["ops"].values()
    assert counting["config"] == {"days": wanted}
    # A person may also name a day of which nothing is known, and mistype one.
    first, wrong = (
        today - timedelta(days=3),
        [f"{wanted[0]} ", f"{today:%G-W%V-%u}", f"{today:%Y%m%d}", f"{today}"],
    )
    counting["config"]["days"] = [wrong[0], *wanted, *wrong[1:], first.isoformat(), wanted[0]]
    result = job.execute_in_process(run_config=request.run_config, instance=instance, raise_on_error=False)
    failure = result.failure_data_for_node("orders_history")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert failure.user_failure_data.description == (
        "days: "
        + "; ".join(f"{each!r} is not a day such as 2026-01-31" for each in wrong[:3])
        + f"; {today} is not over: it is {today} in UTC. The other 3 days were counted"
    )
    records = instance.fetch_materializations(key, limit=10, ascending=True).records
    made = [each.asset_materialization for each in records if each.asset_materialization]
    shown: dict[str | None, dict[str, Any]] = {
        each.partition: {name: value.value for name, value in each.metadata.items()} for each in made
    }
    figures = ("entered_records", "accepted_records", "rejected_records", "leases", "counted_from")
    assert [tuple(shown[day.isoformat()][name] for name in figures) for day in (first, *days)] == [
        (0, 0, 0, 0, "none: the journal of that day was dropped"),
        (100, 97, 3, 1, "the journal"),
        (50, 47, 3, 1, "the journal"),
    ]
    assert [(day.day, day.spso) for day in journal.days("orders")] == list(zip(days, (100, 150), strict=True))
    set_clock(private_database, noon + timedelta(days=1))
    assert tick().skip_message == f"no further day is over since {wanted[-1]}"
    days_work(state, 20)
    assert tick().skip_message == f"no further day is over since {wanted[-1]}"
    set_clock(private_database, noon + timedelta(days=2))
    late, over = (today - timedelta(days=4)).isoformat(), (today + timedelta(days=1)).isoformat()
    private_database.rows(
        sa.text(
            "insert into sharequeue.journal_daily select"
            " (jsonb_populate_record(d, jsonb_build_object('day', cast(:day as text)))).*"
            " from sharequeue.journal_daily d limit 1 returning day"
        ),
        day=late,
    )
    answer = tick()
    assert answer.dynamic_partitions_requests[0].partition_keys == [late, over]
    (counting,) = answer.run_requests[0].run_config["ops"].values()
    assert counting["config"] == {"days": [late, over]}
    # Not named after the days: those of a run that failed are requested again.
    assert answer.run_requests[0].run_key == f"orders:history:{result.run_id}"
