"""A share group in a code location that was there before: nothing of the location's changes, and nothing collides."""

import dagster as dg
import pytest

from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.dagster.resources import SETTINGS, SPARK, STATE
from tests.fixtures.dagster import share_group


class Told(dg.ConfigurableResource[str]):
    """A resource of the location that was there before."""

    text: str


@dg.asset
def report(spark: Told, settings: Told, queue: Told) -> str:
    """Use the location's own resources, with the most usual names."""
    return f"{spark.text} {settings.text} {queue.text}"


@pytest.fixture(scope="module")
def location() -> dg.Definitions:
    """Give the definitions of a location with its own executor and resources, and a share group."""
    theirs = dg.Definitions(
        assets=[report],
        jobs=[
            dg.define_asset_job("nightly", selection=[report]),
            dg.define_asset_job("everything", selection=dg.AssetSelection.all()),
        ],
        resources={name: Told(text=f"their {name}") for name in ("spark", "settings", "queue")},
        executor=dg.multiprocess_executor.configured({"max_concurrent": 3}),
    )
    group = share_group("orders", backfill={"start": "2013-01-01"})
    return dg.Definitions.merge(theirs, share_group_defs(group), share_group_resources())


def test_only_our_jobs_have_our_executor(location: dg.Definitions) -> None:
    """The other jobs, and assets materialized in the UI, keep the location's executor."""
    jobs = location.get_repository_def().get_all_jobs()
    executors = {job.name: job.executor_def.name for job in jobs}
    suffixes = ("", "_redrive", "_checks", "_replay", "_publish", "_count_days")
    ours = {f"orders{suffix}" for suffix in suffixes}
    assert {name for name, executor in executors.items() if executor == "in_process"} == ours
    assert executors["nightly"] == executors["__ASSET_JOB"] == "multiprocess"


def test_a_job_over_all_assets_still_loads_and_runs(location: dg.Definitions) -> None:
    """Of the assets of `backfill` only the replays are in it, which are one kind of partitions; a run without a
    partition replays nothing."""
    job = location.get_repository_def().get_job("everything")
    replayed, history = dg.AssetKey(["orders", "replayed"]), dg.AssetKey(["orders", "history"])
    assert history not in job.asset_layer.executable_asset_keys
    result = job.execute_in_process(asset_selection=[report.key, replayed])
    assert result.success
    assert [event.asset_key for event in result.get_asset_materialization_events()] == [report.key]


def test_resources_of_the_usual_names_stay_the_locations(location: dg.Definitions) -> None:
    """An asset with `spark`, `settings` and `queue` gets its own ones, beside ours."""
    assert {SETTINGS, STATE, SPARK, "spark", "settings", "queue"} <= set(location.resources or {})
    result = location.get_repository_def().get_job("nightly").execute_in_process(asset_selection=[report.key])
    assert result.output_for_node("report") == "their spark their settings their queue"


def test_every_resource_key_has_the_prefix() -> None:
    """So none collides with a name that a location may have."""
    given = share_group_resources()
    assert all(key.startswith("sharequeue_") for key in given.resources or {})
    assert given.executor is None


def test_a_name_of_its_own_collides_with_no_job_op_or_asset() -> None:
    """An existing location may have a job, an op and an asset of the group's name."""

    @dg.op(name="orders_accepted")
    def op() -> None: ...

    @dg.job(name="orders")
    def job() -> None:
        op()

    @dg.asset(key=["orders", "accepted"])
    def theirs() -> None: ...

    existing = dg.Definitions(assets=[theirs], jobs=[job])
    group = share_group("orders", name="orders_queue", backfill={"start": "2013-01-01"})
    merged = dg.Definitions.merge(existing, share_group_defs(group), share_group_resources())
    dg.Definitions.validate_loadable(merged)
    names = {job.name for job in merged.get_repository_def().get_all_jobs()}
    assert names >= {"orders", "orders_queue", "orders_queue_redrive"}
    # Its output stays where it is.
    assert share_group("a-b", name="other").output == share_group("a-b").output == "a_b"


def test_queues_of_two_clusters_with_one_group_id_share_nothing() -> None:
    """With a name and a prefix of topics of its own, the second one has other assets, topics, tags and partitions."""
    east = share_group("orders", backfill={"start": "2013-01-01"})
    west = share_group(
        "orders", name="orders_west", topic_prefix=["kafka", "west"], backfill={"start": "2013-01-01"}
    )
    keys, partitions, tags = [], [], []
    for group in (east, west):
        defs = dg.Definitions.merge(share_group_defs(group), share_group_resources())
        keys.append({spec.key for spec in defs.resolve_all_asset_specs()})
        partitions.append(
            {
                spec.partitions_def.name
                for spec in defs.resolve_all_asset_specs()
                if isinstance(spec.partitions_def, dg.DynamicPartitionsDefinition)
            }
        )
        jobs = [job for job in defs.get_repository_def().get_all_jobs() if "ASSET_JOB" not in job.name]
        tags.append({job.run_tags["sharequeue/queue"] for job in jobs})
    assert not keys[0] & keys[1]
    assert dg.AssetKey(["kafka", "west", "flights"]) in keys[1]
    assert partitions == [{"sharequeue/orders/history"}, {"sharequeue/orders_west/history"}]
    assert tags == [{"orders"}, {"orders_west"}]
