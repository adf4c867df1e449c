"""What a `defs.yaml` may say: a mistake is refused when it is loaded, with the field and what would be right."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from linecache import getline
from typing import Any

import dagster as dg
import pytest

from sharequeue.dagster import (
    AssetData,
    NameCollision,
    ShareGroupComponent,
    share_group_defs,
    share_group_resources,
    topic_assets,
)
from sharequeue.dagster.assets.accepted import pipeline_of
from sharequeue.dagster.assets.replayed import partitions_of, replay_name
from sharequeue.dagster.lineage import Lineage
from sharequeue.dagster.names import GROUP_TAG, lease_tag_value
from sharequeue.dagster.share_group import Backfill
from sharequeue.dagster.yaml_values import duration
from sharequeue.spark import KafkaTopic, pipeline
from tests.fixtures.dagster import share_group
from tests.fixtures.dagster_yaml import MINIMAL, loaded, refused, with_letters

MARS = "timezone is 'Mars': expected a time zone such as UTC or Europe/Berlin"


def specs(defs: dg.Definitions) -> dict[str, dg.AssetSpec]:
    found = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    return {key: spec for key, spec in found.items() if not key.startswith("kafka/")}


def test_a_group_topics_and_a_pipeline_are_enough() -> None:
    """Three lines make the assets, in the lineage of a record, with checks, a sensor and two jobs."""
    defs = loaded(MINIMAL)
    found = specs(defs)
    deps = {key: sorted(dep.asset_key.to_user_string() for dep in spec.deps) for key, spec in found.items()}
    assert deps == {
        "orders/accepted": ["kafka/orders"],
        "orders/dead_letters": ["orders/accepted"],
        "orders/redriven": ["orders/dead_letters"],
        "orders/spso_and_lag": ["orders/accepted", "orders/dead_letters"],
        "orders/delivery_counts": ["orders/accepted", "orders/dead_letters"],
    }
    assert {sensor.name for sensor in defs.sensors or ()} == {"orders_lag", "orders_observe"}
    assert not defs.schedules
    assert all(
        spec.description and spec.kinds and spec.metadata["share_group"] == "orders"
        for spec in found.values()
    )
    assert {spec.tags[GROUP_TAG] for spec in found.values()} == {"orders"}


def test_two_queues_on_one_topic_do_not_collide() -> None:
    """Nothing of theirs collides, and both depend on the topic's external asset."""
    found = specs(loaded(MINIMAL, {**MINIMAL, "group": "orders-audit"}))
    assert len(found) == 10
    assert [str(dep.asset_key.path) for dep in found["orders_audit/accepted"].deps] == ["['kafka', 'orders']"]


def topics(defs: dg.Definitions) -> dict[str, dg.AssetSpec]:
    """The external assets of topics, each with its dependencies."""
    found = defs.resolve_all_asset_specs()
    return {spec.key.path[1]: spec for spec in found if spec.key.path[0] == "kafka"}


def upstream(spec: dg.AssetSpec) -> set[str]:
    return {dep.asset_key.to_user_string() for dep in spec.deps}


def test_a_topic_is_one_asset_for_all_queues_that_read_or_write_it() -> None:
    """Two queues read `orders` and share a dead-letter topic, which a third one reads: each topic is defined once,
    and the whole is one connected graph."""
    queues = (
        with_letters("b", "orders", "dlq"),
        with_letters("a", "orders", "dlq"),
        with_letters("repair", "dlq", "dlq.repair"),
    )
    defs = loaded(*queues)
    found = topics(defs)
    assert set(found) == {"orders", "dlq", "dlq.repair"}
    assert all(spec.group_name == "kafka" and spec.kinds == {"kafka"} for spec in found.values())
    assert upstream(found["dlq"]) == {"a/dead_letters", "b/dead_letters"}
    assert found["dlq"].metadata["dead_letters_of"] == "a, b"
    assert "the dead-letter topic of share groups `a`, `b`" in (found["dlq"].description or "")
    assert "read by share group `repair`" in (found["dlq"].description or "")
    every = specs(defs)
    assert upstream(every["a/redriven"]) == upstream(every["repair/accepted"]) == {"kafka/dlq"}
    # Back to the source: a link, because a dependency would close a circle.
    assert every["a/redriven"].metadata["sends_to_orders"] == dg.MetadataValue.asset(found["orders"].key)
    assert {"redriven_by_a", "redriven_by_b"} < set(found["orders"].metadata)
    graph = defs.resolve_asset_graph()
    keys, reached = {*graph.get_all_asset_keys()}, {found["orders"].key}
    while more := {
        other
        for key in reached
        for other in graph.get(key).parent_keys | graph.get(key).child_keys
        if other not in reached
    }:
        reached |= more
    assert reached == keys


def test_queues_that_repair_each_others_letters_are_no_cycle() -> None:
    """The letters of each are the source of the other: one of the two dependencies becomes a link."""
    found = topics(loaded(with_letters("a", "x", "y"), with_letters("b", "y", "x")))
    assert upstream(found["y"]) == {"a/dead_letters"}
    assert upstream(found["x"]) == set()
    assert found["x"].metadata["also_written_by_b"] == dg.MetadataValue.asset(
        dg.AssetKey(["b", "dead_letters"])
    )
    assert upstream(topics(loaded(with_letters("a", "x", "x")))["x"]) == set()


def with_results(group: str, source: str, to: str) -> dict[str, Any]:
    return {
        **MINIMAL,
        "group": group,
        "topics": [source],
        "destination": {"kafka_topic": {"topic": to, "key": "note"}},
    }


def test_a_chain_of_queues_is_connected_by_its_topics() -> None:
    """The topic of the results depends on the queue that writes it, and is what the next queue reads."""
    defs = loaded(with_results("clean", "orders", "orders.clean"), {**MINIMAL, "topics": ["orders.clean"]})
    found = topics(defs)
    assert set(found) == {"orders", "orders.clean"}
    assert upstream(found["orders.clean"]) == {"clean/accepted"}
    assert upstream(specs(defs)["orders/accepted"]) == {"kafka/orders.clean"}
    assert found["orders.clean"].metadata["results_of"] == "clean"
    assert "gets the results of share group `clean`, read by share group `orders`" in (
        found["orders.clean"].description or ""
    )
    circle = topics(loaded(with_results("a", "x", "y"), with_results("b", "y", "x")))
    assert (upstream(circle["y"]), upstream(circle["x"])) == ({"a/accepted"}, set())


def test_the_destination_of_a_yaml_is_that_of_its_pipeline() -> None:
    """A handler gets it. A pipeline with another destination of its own is refused: there is one place for it."""
    given = {"topic": "clean", "key": "note", "value_subject": "clean-value", "source_headers": False}
    yaml_has = {"destination": {"kafka_topic": given}}
    handler = f"{__name__}:handle"
    expected = KafkaTopic("clean", key="note", value_subject="clean-value", source_headers=False)
    assert pipeline_of(share_group("orders", pipeline=handler, **yaml_has)).destination == expected
    assert pipeline_of(share_group("orders", pipeline=handler)).destination is None
    own = share_group("orders", pipeline=f"{__name__}:to_another_topic", **yaml_has)
    with pytest.raises(dg.Failure, match=r"has topic clean, but .* has another destination of its own"):
        pipeline_of(own)


def handle(records: Any) -> Any:
    """Return the records: a handler without a pipeline."""
    return records


to_another_topic = pipeline(
    group="orders", topics=["flights"], sink="orders", destination=KafkaTopic("other")
)(handle)


def test_queues_in_python_share_their_topics() -> None:
    """One list of topics, given to each queue, merges without a double definition."""
    configs = {"errors.deadletterqueue.topic.name": "dlq"}
    queues = [share_group(name, topics=["orders"], configs=configs) for name in ("a", "b")]
    shared = topic_assets(queues)
    defs = [share_group_defs(queue, topics=shared) for queue in queues]
    merged = dg.Definitions.merge(*defs, share_group_resources())
    assert set(topics(merged)) == {"orders", "dlq"}
    alone = dg.Definitions.merge(share_group_defs(queues[0]), share_group_resources())
    assert upstream(topics(alone)["dlq"]) == {"a/dead_letters"}


def test_a_project_may_define_its_topics_itself() -> None:
    """With `topic_assets: false` only the dependencies are left, for an asset of the project's own."""
    (spec,) = topics(loaded({**MINIMAL, "topic_assets": False})).values()
    assert (spec.key.path, spec.description, spec.group_name) == (["kafka", "orders"], None, "default")
    both = topics(loaded({**MINIMAL, "topic_assets": False}, {**MINIMAL, "group": "audit"}))
    assert both["orders"].group_name == "kafka"


def test_assets_link_to_the_code_and_to_the_yaml() -> None:
    """Dagster's own key has the handler with its line, and the file of the component."""
    every = specs(loaded({**MINIMAL, "backfill": {"start": "2026-01-01"}}))
    for name in ("accepted", "replayed"):
        handler, yaml = every[f"orders/{name}"].metadata["dagster/code_references"].code_references
        assert handler.label == MINIMAL["pipeline"]
        assert "flight_delays" in getline(handler.file_path, handler.line_number)
        assert yaml.file_path.endswith("defs.yaml")


def test_the_storage_of_each_asset_is_known_before_the_first_run() -> None:
    """The reports name their view and its columns; the dead letters name their topic."""
    every = specs(loaded(with_letters("orders", "orders", "dlq")))
    report = every["orders/spso_and_lag"].metadata
    assert report["dagster/table_name"] == "sharequeue.share_partition_status"
    assert "share-partition start offset" in (every["orders/spso_and_lag"].description or "")
    columns = {column.name: column for column in report["dagster/column_schema"].columns}
    assert (columns["spso"].type, columns["observed_at"].type) == ("int", "timestamp")
    assert "share-partition start offset" in (columns["spso"].description or "")
    history = specs(loaded({**MINIMAL, "backfill": {"start": "2026-01-01"}}))["orders/history"]
    days = history.metadata["dagster/column_schema"].columns
    assert all(column.description for column in (*columns.values(), *days))
    assert (
        every["orders/delivery_counts"].metadata["dagster/table_name"] == "sharequeue.delivery_count_totals"
    )
    letters = every["orders/dead_letters"].metadata
    assert letters["dagster/table_name"] == "dlq"
    assert [column.name for column in letters["dagster/column_schema"].columns] == ["key", "value", "headers"]


def test_a_backfill_adds_an_asset_with_partitions_and_a_job() -> None:
    """From the topic, beside the group; one run for a range, or one for each partition if the yaml says so."""
    defs = loaded({**MINIMAL, "backfill": {"start": "2013-01-01", "timezone": "Europe/Berlin"}})
    spec = specs(defs)["orders/replayed"]
    assert [dep.asset_key.to_user_string() for dep in spec.deps] == ["kafka/orders"]
    graph = defs.resolve_asset_graph()
    node = graph.get(spec.key)
    assert (str(node.partitions_def), node.pools) == ("Daily, starting 2013-01-01 Europe/Berlin.", {"spark"})
    assert node.backfill_policy == dg.BackfillPolicy.single_run()
    assert spec.key not in graph.get(dg.AssetKey(["orders", "accepted"])).child_keys
    assert "orders_replay" in {job.name for job in defs.jobs or ()}
    each = {"start": "2013-01-01", "one_run": False}
    node = loaded({**MINIMAL, "backfill": each}).resolve_asset_graph().get(spec.key)
    assert node.backfill_policy == dg.BackfillPolicy.multi_run(1)


@pytest.mark.parametrize(
    ("partitions", "key", "seconds", "name"),
    [
        ("hourly", "2013-01-01-00:00", 3600, "2013-01-01-00-00"),
        ("daily", "2013-01-01", 86_400, "2013-01-01"),
        ("weekly", "2013-01-01", 604_800, "week-2013-01-01"),
    ],
)
def test_the_first_partition_begins_with_the_first_day(
    partitions: str, key: str, seconds: int, name: str
) -> None:
    """A week begins on the weekday of the start, a Tuesday here, so that no day is left out; its replay has another
    name than that of its first day."""
    backfill = Backfill.model_validate({"start": "2013-01-01", "partitions": partitions})
    made = partitions_of(backfill)
    window = made.time_window_for_partition_key(key)
    assert (made.get_first_partition_key(), replay_name(backfill, key)) == (key, name)
    assert (window.end - window.start).total_seconds() == seconds


def test_materialize_all_neither_redrives_nor_publishes() -> None:
    """Dagster cannot materialize what is redriven or published: only their jobs do that."""
    defs = loaded({**MINIMAL, "backfill": {"start": "2013-01-01"}})
    graph = defs.resolve_asset_graph()
    every = defs.resolve_implicit_global_asset_job_def().all_node_defs
    steps = {node.name for node in every}
    assert "orders_accepted" in steps
    for asset, job in (("redriven", "orders_redrive"), ("published", "orders_publish")):
        key = dg.AssetKey(["orders", asset])
        assert graph.has(key)
        assert key not in graph.materializable_asset_keys
        assert f"orders_{asset}" not in steps
        assert [node.name for node in defs.resolve_job_def(job).nodes] == [f"orders_{asset}"]


def test_groups_with_one_name_in_dagster_are_refused() -> None:
    told = refused({**MINIMAL, "group": "a-b"}, {**MINIMAL, "group": "a.b"})
    assert "the share groups 'a-b' and 'a.b' both get the name 'a_b' in Dagster" in told
    assert re.search(r"set `name` of one of them \(\S+/queue0/defs.yaml:2, \S+/queue1/defs.yaml:2\)", told)


def test_a_name_in_the_yaml_settles_a_collision() -> None:
    """It is the name of the job, and the prefix of the keys."""
    defs = loaded({**MINIMAL, "group": "a-b"}, {**MINIMAL, "group": "a.b", "name": "other"})
    assert {"a_b", "other"} <= {job.name for job in defs.jobs or ()}
    assert "other/accepted" in specs(defs)


def test_a_group_that_is_defined_twice_is_refused() -> None:
    told = refused(MINIMAL, MINIMAL)
    assert "share group 'orders' is defined twice: keep one defs.yaml for it" in told
    assert re.search(r"\S+/queue0/defs.yaml:2, \S+/queue1/defs.yaml:2", told)


@pytest.mark.parametrize(
    ("given", "line", "expected"),
    [
        ({"automation": {"schedule": {"cron": "0 3 * * *", "timezone": "Mars"}}}, 3, MARS),
        ({"backfill": {"start": "2013-01-01", "timezone": "Mars"}}, 2, MARS),
        (
            {"automation": {"schedule": {"cron": "0 25 * * *"}}},
            3,
            "cron is '0 25 * * *': expected minute, hour, day, month and weekday, each in its range, such as "
            "`0 3 * * *`",
        ),
    ],
)
def test_a_time_that_does_not_exist_is_refused_with_the_group_and_the_line(
    given: dict[str, Any], line: int, expected: str
) -> None:
    told = refused({**MINIMAL, **given})
    assert expected in told
    assert re.search(rf"share group 'orders': \S+/queue0/defs.yaml:{line} - attributes", told)


def test_a_time_may_be_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked when Dagster has filled it in."""
    monkeypatch.setenv("CRON_OF_A_TEST", "0 4 * * *")
    cron, zone = "{{ env.CRON_OF_A_TEST }}", "{{ 'Europe/' + 'Berlin' }}"
    given = {**MINIMAL, "automation": {"schedule": {"cron": cron, "timezone": zone}}}
    (schedule,) = loaded(given).schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 4 * * *", "Europe/Berlin")
    monkeypatch.setenv("CRON_OF_A_TEST", "never")
    assert "cron is 'never': expected minute, hour" in refused(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": ""}, "group.id must not be empty"),
        ({"name": "a-b"}, "name is 'a-b': use letters, digits and underscores"),
        ({"name": "config"}, "name is 'config': use letters"),
        ({"key_prefix": []}, "[] is not the prefix of a key"),
        ({"topic_prefix": ["a", ""]}, "['a', ''] is not the prefix of a key"),
        ({"key_prefix": "a/b"}, "or a list of such names, such as [shop, orders]"),
        ({"key_prefix": ["a", "b c"]}, "['a', 'b c'] is not the prefix of a key: expected a name of letters"),
        ({"tags": {"sharequeue/group": "x"}}, "tags: 'sharequeue/group' begins with sharequeue/"),
        ({"freshness": {"fail_window": "1s"}}, "'1s' is too short: expected at least 1m"),
        ({"automation": {"observe": {"keep": "0s"}}}, "'0s' is too short: expected at least 1m"),
        ({"group": "g" * 250}, "has 250 characters"),
        ({"topics": []}, "topics must have at least one topic"),
        ({"topics": ["a b"]}, "The topic name 'a b' is not legal"),
        ({"topics": ["a", "b", "a"]}, "topics has 'a' more than once: name each topic once"),
        ({"pipeline": "pipelines.flights"}, "not of the form MODULE:NAME"),
        ({"pipeline": "pipelines.flights.pipeline:flight_delay"}, "Did you mean flight_delays"),
        ({"pipeline": "pipelines.flight:x"}, "there is no module pipelines.flight"),
        ({"configs": {"share.delivery.count.limit": 1}}, "share.delivery.count.limit"),
        ({"configs": {"share.delivery.limit": 5}}, "share.delivery.count.limit"),
        ({"summaries": {"a-b": "os.path:join"}}, "use letters, digits and underscores"),
        ({"summaries": {"accepted": "os.path:join"}}, "every share group has an asset of that name"),
        ({"summaries": {"delays": "pipelines.flights.pipeline:merged_delay"}}, "Did you mean merged_delays"),
        ({"freshness": {"fail_window": "soon"}}, "'soon' is not a duration"),
        ({"freshness": {"fail_window": "1h", "warn_window": "2h"}}, "warn_window 2h must be shorter"),
        ({"run": {"max_seconds": 0}}, "expected more than 0, but it is 0"),
        ({"run": {"max_seconds": math.inf}}, "expected more than 0, but it is inf"),
        ({"run": {"max_bytes": -1}}, "expected at least 0, but it is -1"),
        (
            {"run": {"replaces": ""}},
            "replaces is '': expected the name of a pipeline, such as my_module:orders",
        ),
        ({"dead_letters": {"drift": {"share": 1.5}}}, "expected more than 0 and at most 1, but it is 1.5"),
        (
            {"automation": {"sensor": {"interval": 5}}},
            "automation.sensor has no field 'interval'. Did you mean interval_seconds",
        ),
        (
            {"automation": {"sensor": {"interval_seconds": 1e9}}},
            "expected at least 1 and at most 86400, but it is 1e+09",
        ),
        ({"freshness": {"window": "2h"}}, "freshness has no field 'window'. Did you mean "),
        ({"run": {"x": 1}}, "run has no field 'x'. "),
        ({"checks": {"x": 1}}, "The fields are max_age, max_held, max_lag and 1 more."),
        ({"backfill": {"start": "yesterday"}}, "expected a day such as 2013-01-01"),
        ({"backfill": {"start": "2013-W01-1"}}, "expected a day such as 2013-01-01"),
        ({"backfill": {"start": "2013-01-01", "timezone": "Mars"}}, "expected a time zone such as UTC"),
        ({"destination": {"kafka_topic": {"topic": "a b"}}}, "The topic name 'a b' is not legal"),
        ({"destination": {"kafka_topic": {"topic": "orders"}}}, "would get its own results as records"),
        ({"destination": {"kafka_topic": {"topics": "a"}}}, "kafka_topic has no field 'topics'"),
        (
            {
                "destination": {"kafka_topic": {"topic": "dlq"}},
                "configs": {"errors.deadletterqueue.topic.name": "dlq"},
            },
            "dlq is the dead-letter topic of the group",
        ),
        ({"pipelines": "x"}, "pipelines"),
    ],
)
def test_a_mistake_is_refused_with_the_field_and_the_fix(given: dict[str, Any], message: str) -> None:
    assert message in refused({**MINIMAL, **given})


def test_translation_gives_keys_tags_and_groups() -> None:
    """As with dagster-dbt: attributes with templates over `asset`, `group`, `topics` and `spec`."""
    translation = {"key": "lake/{{ group }}/{{ asset }}", "group_name": "lake", "tags": {"tier": "gold"}}
    found = specs(loaded({**MINIMAL, "translation": translation}))
    assert set(found) >= {"lake/orders/accepted", "lake/orders/dead_letters"}
    (dep,) = found["lake/orders/dead_letters"].deps
    assert dep.asset_key.to_user_string() == "lake/orders/accepted"
    assert {spec.group_name for spec in found.values()} == {"lake"}
    assert found["lake/orders/accepted"].tags["tier"] == "gold"
    assert found["lake/orders/accepted"].tags[GROUP_TAG] == "orders"


def test_an_unknown_field_of_a_column_is_named() -> None:
    """Also in a list, where Dagster would report an error for each type of each field."""
    message = refused({**MINIMAL, "columns": [{"name": "note"}, {"name": "price", "minimum": 1}]})
    assert "columns[1] has no field 'minimum'. Did you mean min" in message
    columns = [{"name": "note", "not_null": True, "accepted_values": ["{{ env.HOME }}", "1"]}]
    checks = loaded({**MINIMAL, "columns": columns}).asset_checks or ()
    assert "orders_columns" in {each.node_def.name for each in checks}


def test_topics_are_translated_too() -> None:
    """All queues that read a topic have its key, and what the first of them says of it."""
    translation = {"key": "raw/{{ topic }}", "group_name": "raw", "owners": ["team:{{ group }}"]}
    queue = {**with_letters("orders", "orders", "dlq"), "topic_translation": translation}
    defs = loaded(queue, {**MINIMAL, "group": "audit", "topic_translation": translation})
    found = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert (found["raw/orders"].group_name, found["raw/orders"].owners) == ("raw", ["team:audit"])
    assert found["raw/dlq"].owners == ["team:orders"]
    assert found["raw/orders"].metadata["topic"] == "orders"
    assert upstream(found["raw/dlq"]) == {"orders/dead_letters"}
    for queue_name in ("orders", "audit"):
        assert upstream(found[f"{queue_name}/accepted"]) == {"raw/orders"}
    links = found["orders/redriven"].metadata
    assert links["sends_to_orders"].asset_key.to_user_string() == "raw/orders"


def test_prefix_owners_tags_and_freshness_reach_the_assets() -> None:
    given = {
        "key_prefix": ["shop", "orders"],
        "owners": ["team:shop"],
        "tags": {"tier": "gold"},
        "freshness": {"fail_window": "2h"},
    }
    found = specs(loaded({**MINIMAL, **given}))
    accepted = found["shop/orders/accepted"]
    assert accepted.owners == ["team:shop"]
    assert accepted.tags["tier"] == "gold"
    two_hours = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=2))
    assert accepted.freshness_policy == found["shop/orders/spso_and_lag"].freshness_policy == two_hours
    assert found["shop/orders/dead_letters"].freshness_policy is None


def test_an_observed_queue_is_stale_after_a_day() -> None:
    """Unless `freshness` has another age. Without an observation nothing has a policy: an idle queue would look
    stale."""
    observed = specs(loaded({**MINIMAL, "automation": {"observe": {"enabled": True}}}))
    a_day = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=1))
    assert observed["orders/accepted"].freshness_policy == a_day
    assert observed["orders/spso_and_lag"].freshness_policy == a_day
    assert specs(loaded(MINIMAL))["orders/accepted"].freshness_policy is None


def test_a_custom_component_changes_the_run_and_the_assets() -> None:
    """`execute` and `get_asset_spec` are meant to be overridden."""

    class Audited(ShareGroupComponent):
        def execute(self, run: Any) -> Any:
            return dg.MaterializeResult(metadata={"audited": True, "group": run.group.group})

        def get_asset_spec(self, spec: dg.AssetSpec, data: AssetData) -> dg.AssetSpec:
            return spec.replace_attributes(owners=[f"team:{data.name}"])

    component = Audited(**MINIMAL)
    lineage = Lineage(component, component.get_asset_spec)
    assert lineage["dead_letters"].owners == ["team:dead_letters"]
    defs = share_group_defs(component, execute=component.execute, translate=component.get_asset_spec)
    (accepted, *_) = defs.assets or ()
    assert isinstance(accepted, dg.AssetsDefinition)
    resources = {
        "sharequeue_settings": 1,
        "sharequeue_state": 1,
        "sharequeue_spark": 1,
        "sharequeue_io_manager": dg.mem_io_manager,
    }
    made = dg.materialize([accepted], instance=dg.DagsterInstance.ephemeral(), resources=resources)
    (event,) = made.get_asset_materialization_events()
    assert event.materialization.metadata["group"].value == "orders"
    run = made.dagster_run
    assert run.run_id


def test_the_schedule_and_switches_are_as_given() -> None:
    automation = {
        "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "enabled": True},
        "sensor": {"enabled": True, "interval_seconds": 5},
    }
    defs = loaded({**MINIMAL, "automation": automation})
    (schedule,) = defs.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 3 * * *", "Europe/Berlin")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    lag = next(sensor for sensor in defs.sensors or () if sensor.name == "orders_lag")
    assert (lag.minimum_interval_seconds, lag.default_status) == (5, dg.DefaultSensorStatus.RUNNING)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", timedelta(hours=2)),
        ("30m", timedelta(minutes=30)),
        ("1.5d", timedelta(hours=36)),
        ("9 s", timedelta(seconds=9)),
    ],
)
def test_durations_are_read(text: str, expected: timedelta) -> None:
    assert duration(text) == expected


def test_templates_are_allowed_in_place_of_values() -> None:
    """Their results are checked as values are."""
    given = {
        "freshness": {"fail_window": "{{ 2 }}h", "warn_window": "{{ '1h' }}"},
        "job": {"max_runtime": "{{ '6h' }}", "tags": "{{ {'a': 'b'} }}"},
        "automation": {"observe": {"keep": "{{ 9 }}d"}, "schedule": {"cron": "{{ ['0 3 * * *'] }}"}},
        "columns": [{"name": "a", "min": "{{ 1 }}", "max": 2, "accepted_values": "{{ [1] }}"}],
        "op": {"pool": "{{ 'big' }}"},
        "key_prefix": "{{ ['a', 'b'] }}",
        "topic_prefix": "{{ 'west' }}",
        "tags": "{{ {'a': 'b'} }}",
        "run": {"max_seconds": "{{ 60 }}"},
    }
    found = specs(loaded({**MINIMAL, **given}))
    assert found["a/b/accepted"].freshness_policy is not None
    assert "'0s' is too short" in refused({**MINIMAL, "job": {"max_runtime": "{{ '0s' }}"}})
    assert "must be longer than" in refused({**MINIMAL, "job": {"max_runtime": "{{ '9s' }}"}})


def test_leases_become_a_short_tag() -> None:
    """Ranges, and of very many the first ones."""
    assert lease_tag_value([3, 4, 5, 9]) == "3-5,9"
    assert lease_tag_value(range(0, 200, 2)).endswith(",… (100 leases)")


def test_python_users_get_the_errors_of_names_that_yaml_users_get() -> None:
    """Python users get the same errors as YAML's."""
    with pytest.raises(ValueError, match="topics must have at least one topic"):
        share_group("orders", topics=[])
    assert issubclass(NameCollision, ValueError)
