"""The driver elsewhere: a Pipes client starts it, and Dagster shows the same as for a run in its own process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from confluent_kafka import Producer
from dagster_pipes import PipesContext, open_dagster_pipes
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.dagster.names import LEASES_TAG, MEMBER_TAG, dagster_name
from sharequeue.dagster.retries import NOT_RETRIED_TAG
from sharequeue.domain.results.launches import EXTRA
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.clients import client_config
from sharequeue.spark import Summary, pipeline
from sharequeue.state import State
from tests.fixtures.dagster import share_group
from tests.fixtures.object_stores import LOGIN, S3
from tests.fixtures.stack import REPOSITORY, MakeTopic
from tests.pipes_clients import Here
from tests.waiting import PATIENCE_S
from tests.without_spark import launched

RECORDS = 20


def half(records: DataFrame) -> DataFrame:
    """Accept even offsets and reject the others."""
    odd = fn.col("offset") % 2 == 1
    text = fn.col("value").cast("string").alias("text", metadata={"comment": "The number."})
    return records.select("*", text, fn.when(odd, "reject").otherwise("accept").alias("outcome"))


def broken(records: DataFrame) -> DataFrame:
    """A handler without outcomes."""
    return records


summed: Any = None
"""A pipeline of a test."""


def by_lease(rows: DataFrame) -> DataFrame:
    """The partial sums of a summary."""
    return rows.groupBy("lease_id").agg(fn.count("*").alias("records"))


def total(parts: DataFrame) -> DataFrame:
    """The merged summary."""
    return parts.agg(fn.sum("records").alias("records"))


def opened() -> PipesContext:
    """Open the context, as for a client that keeps it in a store."""
    return open_dagster_pipes()


class Killed(dg.PipesClient):
    """Leases as the driver does, and then ends without a message."""

    def __init__(self, queue: Queue, ends: Callable[[], BaseException]) -> None:
        self.queue, self.ends, self.leased = queue, ends, 0

    def run(self, *, context: Any, extras: Any = None, **kwargs: Any) -> Any:
        """Lease what is there."""
        at = SharePartition(self.queue.group, self.queue.topic, 0)
        found = self.queue.state.acquire([at], extras[EXTRA]["run"]["member_id"], None, RECORDS)
        self.leased = sum(lease.offsets.count for lease in found.leases)
        raise self.ends()


class Swallows(Killed):
    """Returns when its run is cancelled, as the client of Databricks does."""

    def run(self, *, context: Any, extras: Any = None, **kwargs: Any) -> Any:
        """Lease what is there, and be cancelled."""
        with suppress(dg.DagsterExecutionInterruptedError):
            super().run(context=context, extras=extras)
        context.instance.report_run_canceling(context.run)


@dataclass(frozen=True)
class Queue:
    """A group with records, and the definitions that launch its runs."""

    group: str
    topic: str
    state: State

    def run(
        self,
        client: Any,
        handler: str = "half",
        arguments: dict[str, Any] | None = None,
        asset: str = "accepted",
        **config: Any,
    ) -> tuple[bool, dg.DagsterRun, list[dg.EventLogEntry]]:
        """Let Dagster make an asset; return whether it succeeded, the run and its log."""
        launch = {"client": "elsewhere", "arguments": arguments or {}}
        queue = share_group(
            self.group,
            topics=[self.topic],
            pipeline=f"{__name__}:{handler}",
            configs={"share.auto.offset.reset": "earliest"},
            summaries={"totals": f"{__name__}:total"},
            run={"launch": launch},
        )
        defs = dg.Definitions.merge(
            share_group_defs(queue), share_group_resources(), dg.Definitions(resources={"elsewhere": client})
        )
        with dg.DagsterInstance.ephemeral() as instance:
            done = defs.resolve_job_def(queue.name).execute_in_process(
                instance=instance,
                raise_on_error=False,
                run_config={"ops": {f"{queue.name}_{asset}": {"config": config}}} if config else None,
                asset_selection=[dg.AssetKey([queue.name, asset])],
            )
            run = instance.get_run_by_id(done.run_id)
            assert run is not None
            return done.success, run, list(instance.all_logs(done.run_id))


@pytest.fixture
def queue(
    group: str,
    make_topic: MakeTopic,
    settings: Settings,
    service: str,
    state: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Queue:
    """Give a group with records; the environment has its servers."""
    for name, value in (("HOME", settings.home), ("SERVICE_URL", service), ("OUTPUT", tmp_path)):
        monkeypatch.setenv(f"SHAREQUEUE_{name}", str(value))
    topic = make_topic(1)
    producer = Producer(client_config(settings))
    for at in range(RECORDS):
        producer.produce(topic, json.dumps(at), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return Queue(group, topic, state)


def failure_of(log: Sequence[dg.EventLogEntry]) -> str:
    """What the step of a failed run says."""
    (event,) = [
        entry.dagster_event for entry in log if entry.dagster_event and entry.dagster_event.is_step_failure
    ]
    data = event.step_failure_data
    assert data.error is not None
    return str(data.error.cause or data.error) + str(data.user_failure_data)


def metadata(log: Sequence[dg.EventLogEntry]) -> dict[str, Any]:
    """The metadata of the materialization in a log."""
    events = [entry.dagster_event for entry in log if entry.dagster_event]
    (event,) = [each for each in events if each.event_type_value == "ASSET_MATERIALIZATION"]
    return {key: value.value for key, value in event.materialization.metadata.items()}


@pytest.mark.slow
def test_a_command_does_the_run_of_a_process_without_spark(queue: Queue) -> None:
    """Dagster's process cannot import PySpark. Figures, progress, member, leases, checks of columns and the input of
    an asset downstream are those of a run in Dagster's process."""
    launch = {
        "client": "elsewhere",
        "arguments": {"command": [sys.executable, "-m", "sharequeue.cli", "run"]},
    }
    given = {
        "group": queue.group,
        "topics": [queue.topic],
        "pipeline": f"{__name__}:half",
        "configs": {"share.auto.offset.reset": "earliest"},
        "columns": [{"name": "offset", "max": RECORDS}],
        "run": {"launch": launch},
    }
    accepted = f"{dagster_name(queue.group)}/accepted"
    jobs = [{"name": "accept", "selection": [accepted]}, {"name": "read", "selection": ["downstream"]}]
    done, read = launched(given, jobs, folder=str(REPOSITORY), environment=os.environ)
    assert done["success"], done["lines"]
    shown, tags = done["metadata"]["accepted"], done["tags"]
    assert (shown["accepted_records"], shown["rejected_records"], shown["lag_records"]) == (10, 10, 0)
    assert shown["dagster/row_count"] == 10
    assert shown["dagster/column_schema"]["text"] == "The number."
    assert shown["dagster/column_lineage"]["text"] == [[queue.topic, "value"]]
    assert (shown["member"], bool(tags[LEASES_TAG])) == (tags[MEMBER_TAG], True)
    assert any(line.startswith("round 1: 20 records done") for line in done["lines"])
    assert not any("sharequeue answers" in line for line in done["lines"])
    assert (done["checks"], read["metadata"]["downstream"]) == ({"offset_max": True}, {"rows": 10})


def test_an_error_of_the_driver_is_that_of_the_run(queue: Queue, spark: SparkSession) -> None:
    """The run fails with the driver's words, and is not retried if a retry cannot help."""
    succeeded, run, log = queue.run(Here("stderr"), "broken")
    assert not succeeded
    assert "HandlerError: " in failure_of(log)
    assert "outcome" in failure_of(log)
    assert (run.tags["dagster/max_retries"], run.tags[NOT_RETRIED_TAG][:7]) == ("0", "Failure")
    _, run, log = queue.run(Here(), arguments={"options": ["--max-rounds", "1"]})
    assert "give its limits in `run` of the defs.yaml" in failure_of(log)


def test_what_an_ended_driver_held_is_given_back_only_to_a_cancelled_run(
    queue: Queue, spark: SparkSession
) -> None:
    """A driver without an answer: its run fails and names its leases; the locks decide. One that was cancelled: its
    records come back at once. Then a run whose messages are lost does the rest, and says that its figures are."""
    opener = {"options": ["--pipes", f"{__name__}:opened", "-o", "json"]}
    succeeded, run, log = queue.run(Here("stdout"), arguments=opener, max_records=8, max_rounds=1)
    assert succeeded
    shown = metadata(log)
    assert (shown["leased_records"], shown["place"]) == (8, "here")
    cancelled = Killed(queue, dg.DagsterExecutionInterruptedError)
    succeeded, _, log = queue.run(cancelled)
    assert not succeeded
    assert "the run was cancelled: its records are released" in failure_of(log)
    assert cancelled.leased == 12
    assert not queue.state.figures.leases(queue.group)
    swallowed = Swallows(queue, dg.DagsterExecutionInterruptedError)
    succeeded, _, log = queue.run(swallowed)
    assert (succeeded, swallowed.leased) == (False, 12)
    assert "the run was cancelled" in failure_of(log)
    assert not queue.state.figures.leases(queue.group)
    killed = Killed(queue, lambda: RuntimeError("exit code -9"))
    succeeded, run, log = queue.run(killed)
    assert not succeeded
    assert "ended without an answer (RuntimeError: exit code -9): it had leased 1 lease" in failure_of(log)
    assert [str(lease.lease_id) for lease in queue.state.figures.leases(queue.group)] == [
        run.tags[LEASES_TAG]
    ]
    queue.state.release_member(queue.group, run.tags[MEMBER_TAG], cancelled=True)
    succeeded, run, log = queue.run(Here(lost=True))
    assert succeeded, failure_of(log)
    shown = metadata(log)
    assert (shown["dagster/row_count"], shown["accepted_records"], shown["lag_records"]) == (10, 6, 0)
    assert shown["member"] == run.tags[MEMBER_TAG]
    assert any("only what the state has is shown" in entry.user_message for entry in log)
    succeeded, run, log = queue.run(Here(lost=True))
    assert not succeeded
    assert "it has leased nothing" in failure_of(log)


def test_a_summary_is_merged_where_it_is_launched(
    queue: Queue, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything was accepted there is no file. One whose answer is lost is a failure, and may be repeated; one
    that the pipeline does not have is a failure for good."""
    summaries = [Summary("totals", by_lease)]
    made = pipeline(group=queue.group, topics=[queue.topic], sink=queue.group, summaries=summaries)(half)
    monkeypatch.setattr(sys.modules[__name__], "summed", made)
    _, _, log = queue.run(Here(), "summed", asset="totals")
    assert metadata(log) == {"dagster/row_count": 0, "place": "here"}
    assert queue.run(Here(), "summed")[0]
    _, _, log = queue.run(Here(), "summed", asset="totals")
    file = tmp_path / dagster_name(queue.group) / "totals.parquet"
    shown = metadata(log)
    assert (shown["dagster/row_count"], shown["path"], shown["place"]) == (1, str(file), "here")
    assert [record.data for record in shown["first_rows"].records] == [{"records": 10}]
    assert pd.read_parquet(file).to_dict("records") == [{"records": 10}]
    succeeded, run, log = queue.run(Here(lost=True), "summed", asset="totals")
    assert not succeeded
    assert "ended without an answer: the file is that of before" in failure_of(log)
    assert "dagster/max_retries" not in run.tags
    _, run, log = queue.run(Here(), "half", asset="totals")
    assert "has no summary 'totals' (it has: none)" in failure_of(log)
    assert run.tags["dagster/max_retries"] == "0"


def test_a_driver_that_cannot_start_is_not_retried(queue: Queue) -> None:
    """The run says what is wrong with `run.launch`, or where the reason is. What may pass is retried."""
    client, shell = dg.PipesSubprocessClient(), ["sh", "-c"]
    printed = "in the stdout and stderr of this step"
    for given, arguments, expected, is_final in (
        ("text", {}, "the resource 'elsewhere' is of type str: expected a Pipes client", True),
        (client, {}, "run.launch.arguments: missing a required argument: 'command'", True),
        (client, {"command": "sh -c true"}, "`command` is a list: the program, and each of its", True),
        (client, {"command": [*shell, "exit 2"]}, printed, True),
        (client, {"command": [*shell, "exit 1"]}, printed, False),
    ):
        succeeded, run, log = queue.run(given, arguments=arguments)
        assert not succeeded
        assert expected in failure_of(log)
        assert (run.tags.get("dagster/max_retries") == "0") == is_final


OPENS_S3 = """
import boto3
from dagster_pipes import PipesS3ContextLoader, PipesS3MessageWriter, open_dagster_pipes


def opened():
    client = boto3.client("s3", **{access!r})
    messages = PipesS3MessageWriter(client, interval=1)
    return open_dagster_pipes(context_loader=PipesS3ContextLoader(client), message_writer=messages)
"""


class InS3(dg.PipesContextInjector):
    """Puts the context into a bucket, as that of dagster-aws does."""

    def __init__(self, bucket: str, client: Any) -> None:
        self.bucket, self.client = bucket, client

    @contextmanager
    def inject_context(self, context_data: Any) -> Iterator[dict[str, str]]:
        """Write it, and say where."""
        self.client.put_object(Bucket=self.bucket, Key="context", Body=json.dumps(context_data))
        yield {"bucket": self.bucket, "key": "context"}

    def no_messages_debug_text(self) -> str:
        """What is shown if there are none."""
        return self.bucket


class FromS3(dg.PipesBlobStoreMessageReader):
    """Reads messages from a bucket, as that of dagster-aws does."""

    def __init__(self, bucket: str, client: Any) -> None:
        super().__init__(interval=1)
        self.bucket, self.client = bucket, client

    @contextmanager
    def get_params(self) -> Iterator[dict[str, str]]:
        """Say where they are."""
        yield {"bucket": self.bucket, "key_prefix": "messages"}

    def messages_are_readable(self, params: Any) -> bool:
        """Whether there are some."""
        return self.download_messages_chunk(1, params) is not None

    def download_messages_chunk(self, index: int, params: Any) -> str | None:
        """Read some."""
        try:
            found = self.client.get_object(Bucket=self.bucket, Key=f"messages/{index}.json")
        except self.client.exceptions.NoSuchKey:
            return None
        return str(found["Body"].read().decode())

    def no_messages_debug_text(self) -> str:
        """What is shown if there are none."""
        return self.bucket


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("handler", ["half", "broken"])
def test_context_and_messages_in_a_store(queue: Queue, s3: S3, tmp_path: Path, handler: str) -> None:
    """The command opens them by a function of the user; figures and errors arrive."""
    keys = {"aws_access_key_id": LOGIN["access.key"], "aws_secret_access_key": LOGIN["secret.key"]}
    access = {"endpoint_url": s3.url, "region_name": "us-east-1", **keys}
    (tmp_path / "opens_s3.py").write_text(OPENS_S3.format(access=access))
    bucket, client = s3.bucket(), s3.client()
    pipes = dg.PipesSubprocessClient(
        cwd=str(REPOSITORY),
        env={"PYTHONPATH": str(tmp_path)},
        context_injector=InS3(bucket, client),
        message_reader=FromS3(bucket, client),
    )
    words = [sys.executable, "-m", "sharequeue.cli", "run", "--pipes", "opens_s3:opened"]
    succeeded, _, log = queue.run(pipes, handler, {"command": words})
    if handler == "broken":
        assert not succeeded
        assert "HandlerError: " in failure_of(log)
        return
    assert succeeded, [entry.user_message for entry in log]
    assert metadata(log)["accepted_records"] == RECORDS / 2
