"""The steps and the jobs of a queue have the pool, tags, retries and executor of its `defs.yaml`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from sharequeue.dagster import share_group_defs, share_group_resources
from tests.fixtures.dagster import share_group

K8S = {"container_config": {"resources": {"limits": {"memory": "4Gi"}}}}
JOBS = ("orders", "orders_checks", "orders_redrive", "orders_replay", "orders_publish", "orders_count_days")
executor = dg.multiprocess_executor.configured({"max_concurrent": 2}, name="two_at_once")


def repository(**given: Any) -> dg.RepositoryDefinition:
    group = share_group("orders", backfill={"start": "2026-01-01"}, **given)
    location = dg.Definitions(
        executor=dg.multiprocess_executor.configured({"max_concurrent": 3}, name="three")
    )
    return dg.Definitions.merge(
        share_group_defs(group), share_group_resources(), location
    ).get_repository_def()


def test_a_job_has_the_tags_of_the_yaml() -> None:
    """Priority and limit of the time are Dagster's tags; ours, by which the runs are found, are there, too."""
    made = repository(job={"tags": {"dagster-k8s/config": K8S}, "priority": -3, "max_runtime": "1.5h"})
    for name in JOBS:
        tags = made.get_job(name).run_tags
        assert json.loads(tags["dagster-k8s/config"]) == K8S
        assert (tags["dagster/priority"], tags["dagster/max_runtime"]) == ("-3", "5400")
        assert tags["sharequeue/queue"] == "orders"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("in_process", "in_process"),
        ("multiprocess", "multiprocess"),
        ("location", "three"),
        (f"{__name__}:executor", "two_at_once"),
    ],
)
def test_the_executor_can_be_chosen(given: str, name: str) -> None:
    """It is that of all jobs of the queue."""
    made = repository(job={"executor": given})
    assert {made.get_job(job).executor_def.name for job in JOBS} == {name}


def test_steps_with_spark_have_the_pool_and_the_tags() -> None:
    """The other steps of a run have neither: they are small."""
    made = repository(
        op={"pool": "big", "tags": {"dagster-k8s/config": K8S}},
        summaries={"delays": "pipelines.flights.pipeline:merged_delays"},
    )
    ops = {node.name: node.definition for job in JOBS for node in made.get_job(job).nodes}
    for name, op in ops.items():
        with_spark = name.removeprefix("orders_") in ("accepted", "delays", "replayed", "published")
        assert isinstance(op, dg.OpDefinition)
        assert (op.pool == "big", "dagster-k8s/config" in op.tags) == (with_spark, with_spark), name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"job": {"executor": "threads"}}, "executor: 'threads' is not of the form MODULE:NAME"),
        ({"job": {"max_runtime": "long"}}, "'long' is not a duration"),
        ({"job": {"max_runtime": "0s"}}, "'0s' is too short: expected at least 1s"),
        ({"job": {"max_runtime": "99999999999d"}}, "'99999999999d' is too long: expected at most 36500d"),
        (
            {"job": {"max_runtime": "1m"}},
            "max_runtime 1m must be longer than run.max_seconds, 600: run monitoring",
        ),
        (
            {"job": {"tags": {"dagster/priority": "9"}, "priority": 3}},
            "'dagster/priority' is set by `priority`",
        ),
        (
            {"job": {"tags": {"dagster/max_runtime": 9}, "max_runtime": "6h"}},
            "is set by `max_runtime` as well",
        ),
        ({"job": {"tags": {"sharequeue/group": "x"}}}, "begins with sharequeue/, as our own tags do"),
        (
            {"job": {"tags": {"dagster/run_key": "x"}}},
            "a tag that Dagster gives to a run itself: leave it out",
        ),
        ({"op": {"pool": ""}}, "pool is '': expected a name without spaces, or null for no pool"),
        ({"op": {"pool": "a b"}}, "pool is 'a b': expected a name without spaces"),
        ({"op": {"retry_policy": {"backoff": "LINEAR"}}}, "backoff changes the delay: set delay"),
        ({"op": {"retry_policy": {"max_retries": 0}}}, "expected at least 1, but it is 0"),
        ({"automation": {"schedule": {"cron": ["0 3 * * *", "0 25 * * *"]}}}, "cron is '0 25"),
        ({"automation": {"schedule": {"cron": []}}}, "cron has no times"),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, Any], words: str) -> None:
    """The error has the value, and what is expected."""
    with pytest.raises(ValidationError, match=words):
        share_group("orders", **given)


def test_an_executor_that_is_none_is_named() -> None:
    """An object of another kind is found when the definitions are made."""
    with pytest.raises(ValueError, match="executor: json:loads is of type function: expected an executor"):
        share_group_defs(share_group("orders", job={"executor": "json:loads"}))


def test_a_schedule_has_several_times() -> None:
    """Dagster starts the job at each of them."""
    times = ["0 3 * * *", "30 12 * * 1-5"]
    (schedule,) = (
        share_group_defs(share_group("orders", automation={"schedule": {"cron": times}})).schedules or ()
    )
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.cron_schedule == times


class Stopped(Exception):
    """An error that may pass."""


@pytest.mark.parametrize(
    ("error", "tried", "succeeds"),
    [
        (lambda: Stopped("away"), 3, False),
        (lambda: dg.Failure("wrong", allow_retries=False), 1, False),
        (lambda: dg.DagsterExecutionInterruptedError(), 1, False),
        (None, 1, True),
    ],
)
def test_a_step_is_tried_again_in_its_run(
    error: Callable[[], BaseException] | None, tried: int, succeeds: bool
) -> None:
    """It is tried again as often as the policy says, unless no retry helps or somebody has cancelled the run."""
    tries = []

    def execute(run: Any) -> dg.MaterializeResult[None]:
        tries.append(run.context.retry_number)
        if error is not None:
            raise error()
        return dg.MaterializeResult()

    group = share_group("orders", op={"retry_policy": {"max_retries": 2}})
    (accepted, *_) = share_group_defs(group, execute=execute).assets or ()
    assert isinstance(accepted, dg.AssetsDefinition)
    resources = dict.fromkeys(("sharequeue_settings", "sharequeue_state", "sharequeue_spark"), 1)
    with dg.DagsterInstance.ephemeral() as instance:
        try:
            made = dg.materialize(
                [accepted],
                instance=instance,
                resources={**resources, "sharequeue_io_manager": dg.mem_io_manager},
                raise_on_error=False,
            )
            assert made.success == succeeds
        except dg.DagsterExecutionInterruptedError:
            assert tried == 1
    assert tries == [*range(tried)]
