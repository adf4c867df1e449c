"""Every block of every page runs as it stands; what cannot run here is named, with the test that covers it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import httpx
import pytest
import sqlalchemy as sa
import yaml
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.local.home import Home
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from tests import single
from tests.fixtures.dagster import share_group
from tests.fixtures.deadletters import GivenUp
from tests.fixtures.pipelines import Holder, Produce
from tests.fixtures.registry import RegistryServer, framed, text
from tests.fixtures.stack import MakeTopic
from tests.servers.command import command_server
from tests.waiting import PATIENCE_S, running
from tools.pages import PAGES, ROOT, RUN, SHOWN, Block, Reader, blocks
from tools.typed import type_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ELSEWHERE = {
    # Make's targets are what the build server and the end-to-end tests run.
    "README.md": "tests/e2e/test_main_job.py",
    # No container runs where the tests do; what each container runs is run as a process.
    "docker/README.md": "tests/deep/deep_containers.py",
    # The Python of these runs in the process of the tests, with their Spark session.
    "docs/howto/order-by-key.md": "tests/docs/test_order_by_key_page.py",
    "docs/howto/topic-to-topic.md": "tests/docs/test_topic_to_topic_page.py",
    # It waits for two runs of Dagster's sensor.
    "docs/tutorial/own-queue.md": "tests/deep/deep_fresh_home.py",
}
HERE = {
    "docs/explanation/journal.md",
    "docs/howto/automation.md",
    "docs/howto/backup.md",
    "docs/howto/compaction.md",
    "docs/howto/consumer.md",
    "docs/howto/dagster.md",
    "docs/howto/dead-letters.md",
    "docs/howto/formats.md",
    "docs/howto/lease.md",
    "docs/howto/move-offsets.md",
    "docs/howto/operate.md",
    "docs/howto/pipeline.md",
    "docs/howto/read-output.md",
    "docs/howto/replay.md",
    "docs/howto/reports.md",
    "docs/howto/roles-and-acls.md",
    "docs/howto/runbooks.md",
    "docs/howto/sinks.md",
    "docs/howto/structured-streaming.md",
    "docs/howto/test-your-pipeline.md",
    "docs/howto/trace-a-record.md",
    "docs/howto/upgrade.md",
    "docs/reference/commands.md",
    "docs/tutorial/first-queue.md",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    """A block is run, or only shown; a page with blocks that run has a test that runs them."""
    found = list(blocks(page))
    unknown = [f"{block}: {block.language!r}" for block in found if block.language not in (*RUN, *SHOWN)]
    assert not unknown, f"name the language of these blocks: {RUN} are run, {SHOWN} are shown"
    if any(block.language in RUN for block in found):
        assert page in HERE or page in ELSEWHERE, f"{page} has blocks that no test runs"
    if page in ELSEWHERE:
        assert (ROOT / ELSEWHERE[page]).exists()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a folder with a `sharequeue` that starts at once: the pages call it some seventy times."""
    with command_server(tmp_path_factory.mktemp("command")) as programs:
        yield programs


@pytest.fixture
def reader(
    private_database: Database, settings: Settings, tmp_path: Path, programs: Path
) -> Iterator[Reader]:
    """Give somebody who reads a page at the tests' servers, with a database of their own."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    environment = {
        "SHAREQUEUE_HOME": str(settings.home),
        "SHAREQUEUE_DATABASE_URL": url,
        "SHAREQUEUE_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "SHAREQUEUE_OUTPUT": str(tmp_path / "output"),
        "SHAREQUEUE_JARS": str(settings.jars),
    }
    reader = Reader(tmp_path, environment, private_database, programs)
    yield reader
    reader.end()


def defined(page: str) -> dict[str, Any]:
    """Give what the Python blocks of a page define, in this process: the tests run its pipelines in their session."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "python":
            block.execute(names)
    return names


def run_here(block: Block, names: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Run a block of Python, or the one command of a block, in this process: its session of Spark is there."""
    if block.language == "python":
        block.execute(names)
        return
    program, *arguments = shlex.split(block.text)
    assert program == "sharequeue"
    told = CliRunner().invoke(command, arguments, env=environment)
    assert told.exit_code == 0, told.output


def test_dead_letters_and_the_first_hour(
    reader: Reader, settings: Settings, make_topic: MakeTopic, service: str
) -> None:
    """A record is traced; letters are listed, shown and put back; the second time none is left. Then an operator's
    first hour, with a lease in flight."""
    make_topic(1, "flights")
    make_topic(1, "dlq.flight-delays", errors_deadletterqueue_group_enable="true")
    case = GivenUp(settings, reader.database, "flight-delays", "flights", "dlq.flight-delays")
    alter_group_configs(
        reader.database,
        case.group,
        {
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": case.dead_letter_topic,
            "errors.deadletterqueue.copy.record.enable": "true",
        },
    )
    case.produce(20, headers=[("kind", b"refund")])
    case.reject()
    case.writer().write()
    assert reader.reads("docs/howto/trace-a-record.md")
    assert reader.reads("docs/howto/dead-letters.md")
    (sent,) = reader.database.rows(sa.text("select sum(sent) as sent from sharequeue.redrives"))
    assert sent["sent"] == 20
    state, at = State(reader.database), SharePartition(case.group, case.topic, 0)
    single.observe(state, at, state.figures.describe(case.group)[0].topic_id, 0, 40, 40)
    assert single.acquire(state, at, "member", None, 10) is not None
    assert reader.reads("docs/howto/operate.md")
    assert reader.reads("docs/howto/runbooks.md")
    acts = reader.database.rows(
        sa.text("select act from sharequeue.audit_trail where group_id = 'flight-delays'")
    )
    assert {"alter_group_config", "pause", "resume"} <= {row["act"] for row in acts}
    assert len((reader.folder / "flight-delays.jsonl").read_text().splitlines()) > 0


def test_journal(reader: Reader) -> None:
    """What the journal says of a share-partition that was worked on."""
    state, at = State(reader.database), SharePartition("g", "t", 0)
    alter_group_configs(reader.database, "g", {})
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 100, 100)
    lease = single.acquire(state, at, "member", None, 10)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: OffsetSet.of((0, 5))})
    assert reader.reads("docs/explanation/journal.md")


def test_consumer(reader: Reader, topics: Topics, make_topic: MakeTopic, produce: Produce) -> None:
    """Each program of the page ends, having done what it says."""
    produce(make_topic(1, "orders"), 0, range(10))
    with running(Coordinator(reader.database, topics, interval=0.1, watch_interval=0.2)):
        assert reader.reads("docs/howto/consumer.md")
    (charged,) = State(reader.database).figures.describe("charger")
    assert (charged.accepted, charged.acquired) == (10, 0)


def test_reports(reader: Reader) -> None:
    """Each query and command of the page on reports is taken, by a group that was worked on."""
    state, at = State(reader.database), SharePartition("flight-delays", "flights", 0)
    # Its lock outlives the commands.
    alter_group_configs(reader.database, at.group_id, {"share.record.lock.duration.ms": "3600000"})
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 100, 100)
    lease = single.acquire(state, at, "member", None, 10)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: OffsetSet.of((0, 5))})
    assert reader.reads("docs/howto/reports.md")
    assert reader.reads("docs/reference/commands.md")
    (page,) = (reader.folder / "output" / "reports" / "flight-delays").iterdir()
    assert "5 acquired" in page.read_text()


def test_roles_upgrade_and_backup(reader: Reader) -> None:
    """Roles, ACLs, upgrades, a restore: each command is taken, and a dry run changes nothing."""
    try:
        for page in ("roles-and-acls", "upgrade", "backup"):
            assert reader.reads(f"docs/howto/{page}.md")
    finally:
        with reader.database.transaction() as connection:
            connection.exec_driver_sql("reset role")
            connection.exec_driver_sql("drop owned by flights_job; drop role if exists flights_job")


def test_automation(reader: Reader) -> None:
    """The definitions without YAML load, also with a sensor for failed runs; so do those with it."""
    (query,) = (each for each in blocks("docs/howto/automation.md") if each.language == "sql")
    reader.run(query)
    assert defined("docs/howto/automation.md")
    (shown,) = [each for each in blocks("docs/howto/automation.md") if each.language == "yaml"]
    group = share_group("orders", **yaml.safe_load(shown.text))
    assert group.automation.sensor.min_lag == 1000


def test_the_sensor_for_failed_runs_sends_the_cause_of_the_last_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own sensor, in a few lines; a run that Dagster retries is no alert."""
    page = defined("docs/howto/automation.md")
    sent: list[str] = []

    def post(url: str, json: dict[str, str]) -> httpx.Response:
        sent.append(json["text"])
        return httpx.Response(200, request=httpx.Request("POST", url))

    monkeypatch.setattr(httpx, "post", post)
    monkeypatch.setenv("ALERTS_URL", "http://alerts")

    @dg.op
    def fails() -> None:
        raise RuntimeError("the table is locked" + "\n\tat a.line.of.Java" * 150)

    @dg.job
    def orders() -> None:
        fails()

    for tags, expected in (({"dagster/will_retry": "true"}, 0), ({}, 1)):
        with dg.DagsterInstance.ephemeral() as instance:
            result = orders.execute_in_process(instance=instance, raise_on_error=False, tags=tags)
            context = dg.build_run_status_sensor_context(
                "failed_runs", result.get_run_failure_event(), instance, result.dagster_run
            )
            page["failed_runs"](context.for_run_failure())
        assert len(sent) == expected
    first, *below = sent[0].splitlines()
    assert first.endswith("RuntimeError: the table is locked")
    assert len(below) == 4


def test_move_offsets(reader: Reader, topics: Topics, make_topic: MakeTopic, produce: Produce) -> None:
    """A group begins where the file says that Kafka's own tool wrote. The tool itself is not among the broker's jars:
    a script stands for it, with a line as it prints them."""
    topic = make_topic(1)
    produce(topic, 0, range(5))
    tool = reader.folder / "kafka-share-groups.sh"
    tool.write_text(f"#!/bin/sh\necho '\"{topic}\",0,3'\n")
    tool.chmod(0o755)
    assert reader.reads("docs/howto/move-offsets.md")
    (status,) = State(reader.database).figures.describe("orders")
    assert (status.topic, status.spso) == (topic, 3)


def test_dagster(reader: Reader) -> None:
    """A component of one's own, the factory, and the helper for tests, as a project's author types them."""
    reader.folder = ROOT
    assert reader.reads("docs/howto/dagster.md")


def test_sinks(
    reader: Reader,
    settings: Settings,
    topics: Topics,
    spark: SparkSession,
    make_topic: MakeTopic,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pipelines that the page defines run, each into its sink; then the files of one are brought together."""
    from sharequeue.spark.run import run_rounds

    monkeypatch.chdir(reader.folder)
    produce(make_topic(2, "orders"), 0, ["one order", "another"])
    with reader.database.transaction() as connection:
        connection.exec_driver_sql("create schema sales")
        connection.exec_driver_sql(
            'create table sales.orders (topic text, partition integer, "offset" bigint, note text)'
        )
    names = defined("docs/howto/sinks.md")
    state = State(reader.database)
    own = settings.replace(
        database_url=reader.environment["SHAREQUEUE_DATABASE_URL"], output=reader.folder / "output"
    )
    info = topics.describe(["orders"])["orders"]
    alter_group_configs(reader.database, "orders", {"share.auto.offset.reset": "earliest"})
    held = [SharePartition("orders", "orders", partition) for partition in range(info.partitions)]
    for name in ("files", "table", "shop"):
        for at in held:
            single.alter_offsets(state, at, info.topic_id, 0)
        job = names[name]
        report = run_rounds(own, job, membership=Holder(held), state=state, topics=topics, spark=spark)
        assert (report.accepted, report.lag) == (2, 0), name
    single.alter_offsets(state, held[0], info.topic_id, 0)
    single.observe(state, held[0], info.topic_id, 0, 2, 2)
    assert reader.reads("docs/howto/sinks.md")
    assert reader.reads("docs/howto/read-output.md")
    (compacted,) = (each for each in blocks("docs/howto/compaction.md") if each.language in RUN)
    run_here(compacted, {}, reader.environment)
    (rows,) = reader.database.rows(sa.text("select count(*) as n from sales.orders where note = 'done'"))
    assert rows["n"] == 2


@pytest.mark.deep
def test_formats(
    reader: Reader,
    settings: Settings,
    topics: Topics,
    spark: SparkSession,
    make_topic: MakeTopic,
    produce: Produce,
    registry_server: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pipeline of the page takes what it decodes, and rejects what it does not."""
    from sharequeue.spark.run import run_rounds

    monkeypatch.setenv("SHAREQUEUE_REGISTRY_URL", registry_server.url)
    monkeypatch.syspath_prepend(str(reader.folder))
    (reader.folder / "orders_pb2.py").write_text(
        "from google.protobuf import descriptor_pb2, descriptor_pool, message_factory\n"
        "file = descriptor_pb2.FileDescriptorProto(name='orders.proto', syntax='proto3')\n"
        "file.message_type.add(name='Order').field.add(name='id', number=1, type=9, label=1)\n"
        "pool = descriptor_pool.DescriptorPool()\n"
        "pool.Add(file)\n"
        "Order = message_factory.GetMessageClass(pool.FindMessageTypeByName('Order'))\n"
        "Order.__module__ = 'orders_pb2'\n"
    )
    spark.sparkContext.addPyFile(str(reader.folder / "orders_pb2.py"))
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    registry_server.register("orders-avro-value", schema, 1)
    made: dict[str, list[object]] = {
        "orders-json": ['{"id": "a", "amount": 2}', '{"id": "b", "amount": 0}', '{"id": "c", "amount": -1}'],
        "orders-avro": [framed(1, text("a"))],
        "orders-protobuf": [b"\n\1a"],
    }
    for topic, values in made.items():
        produce(make_topic(1, topic), 0, [*values, "no order"])
    assert reader.reads("docs/howto/formats.md")
    names = defined("docs/howto/formats.md")
    own = settings.replace(
        database_url=reader.environment["SHAREQUEUE_DATABASE_URL"], output=reader.folder / "output"
    )
    state = State(reader.database)
    outcomes = {
        "orders": (3, 0, 1),
        "paid_orders": (2, 1, 1),
        "prices": (2, 0, 2),
        "avro_orders": (1, 0, 1),
        "protobuf_orders": (1, 0, 1),
    }
    for name, expected in outcomes.items():
        job = replace(names[name], group=name)
        alter_group_configs(reader.database, name, {"share.auto.offset.reset": "earliest"})
        at = SharePartition(name, job.topics[0], 0)
        state.initialize(at, topics.describe(job.topics)[job.topics[0]].topic_id, 0, 1)
        report = run_rounds(own, job, membership=Holder([at]), state=state, topics=topics, spark=spark)
        assert (report.accepted, report.released, report.rejected) == expected, name


def test_replay(
    reader: Reader,
    spark: SparkSession,
    topics: Topics,
    make_topic: MakeTopic,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A month of records produced later, in a program; a day by command; the month published into what the group had
    done."""
    from sharequeue.spark.run import run_rounds

    for name, value in reader.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(reader.folder))
    make_topic(1, "orders")
    (reader.folder / "my_orders.py").write_text(
        "from pyspark.sql import functions as fn\n"
        "from sharequeue.spark import pipeline\n"
        "@pipeline(group='orders', topics=['orders'], sink='orders')\n"
        "def orders(records):\n"
        "    empty = fn.length('value') == 0\n"
        "    return records.withColumn('outcome', fn.when(empty, 'reject').otherwise('accept'))\n"
    )
    by_python, by_command, published, produced = (
        block for block in blocks("docs/howto/replay.md") if block.language in RUN
    )
    names: dict[str, Any] = {}
    for block in (produced, by_python, by_command):
        run_here(block, names, reader.environment)
    state, info = State(reader.database), topics.describe(["orders"])["orders"]
    assert state.figures.describe("orders") == []
    alter_group_configs(reader.database, "orders", {"share.auto.offset.reset": "earliest"})
    at = SharePartition("orders", "orders", 0)
    state.initialize(at, info.topic_id, 0, 1)
    orders = import_module("my_orders").orders
    own = settings.replace(
        database_url=reader.environment["SHAREQUEUE_DATABASE_URL"], output=reader.folder / "output"
    )
    report = run_rounds(own, orders, membership=Holder([at]), state=state, topics=topics, spark=spark)
    assert (report.accepted, report.rejected) == (2, 1)
    run_here(published, names, reader.environment)
    assert orders.output(own, state=state).count() == 2

    def publish(*words: str) -> dict[str, Any]:
        told = CliRunner().invoke(
            command, ["publish", "my_orders:orders", "2013-01-01", "-o", "json", *words]
        )
        assert told.exit_code == 0, told.output
        figures: dict[str, Any] = json.loads(told.stdout)
        return figures

    figures = ("records", "hidden_rows", "added_rows", "published")
    for words, done in (
        ((), False),
        (("--execute", "--yes"), True),
    ):
        told = publish(*words)
        assert [told[name] for name in figures] == [2, 2, 2, done]
    assert orders.output(own, state=state).count() == 2
    found = {
        path.parent.name: json.loads(path.read_text())["records"]
        for path in (reader.folder / "output/replays/orders/orders").glob("*/replay.json")
    }
    assert found == {"january": 3, "2013-01-01": 2}


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the folder in which the test's process works, and the files of its session of Spark are."""
    monkeypatch.chdir(tmp_path)
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop
    files = hadoop.fs.FileSystem.getLocal(hadoop.conf.Configuration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.fs.Path(str(tmp_path)))
    yield tmp_path
    files.setWorkingDirectory(before)


def test_test_your_pipeline(settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler alone, the queue without a broker, the whole stack in a folder."""
    monkeypatch.setenv("SHAREQUEUE_JARS", str(settings.jars))
    names: dict[str, Any] = {}
    for block in blocks("docs/howto/test-your-pipeline.md"):
        if block.language in RUN:
            run_here(block, names, {})
    assert Home.at(folder / "stack").ports_file.exists()


def test_lease_and_pipeline(
    service: str,
    settings: Settings,
    make_topic: MakeTopic,
    produce: Produce,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The lines of both pages in one program: ten of them lease, write and acknowledge; a pipeline then
    does the same in its own group."""
    assert service
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    produce(make_topic(2, "orders"), 0, ["one order", "", "another"])
    pages = ("docs/howto/lease.md", "docs/howto/pipeline.md")
    found = [block for page in pages for block in blocks(page) if block.language in RUN]
    assert len(found[1].text.strip().splitlines()) <= 10
    names: dict[str, Any] = {}
    for block in found:
        run_here(block, names, {})
    assert capsys.readouterr().out == 2 * "2 accepted, 1 rejected, 0 to go\n" + "2 in the output\n"
    assert list((folder / "orders.parquet").glob("*.parquet"))


@pytest.mark.deep
def test_structured_streaming(
    service: str, settings: Settings, make_topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    """The page's lines as one program: a run, a stream that ticks, and one on the topic that ends."""
    assert service
    produce(make_topic(2, "orders"), 0, ["one order", "", "another"])
    with Database.open(settings) as database:
        for group in ("orders", "orders-by-stream"):
            alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    page = "docs/howto/structured-streaming.md"
    text = "".join(block.text for block in blocks(page) if block.language in RUN)
    typed = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path,
        env={**os.environ, "SHAREQUEUE_HOME": str(settings.home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert typed.returncode == 0, typed.stderr
    assert typed.stdout == "2 accepted\n2 in the output\n"
    by_stream = {each.lag for each in _figures(settings, "orders-by-stream")}
    assert by_stream == {0}


def _figures(settings: Settings, group: str) -> list[SharePartitionStatus]:
    with Database.open(settings) as database:
        return State(database).figures.describe(group)


def test_tutorial(
    service: str,
    settings: Settings,
    database: Database,
    topics: Topics,
    spark: SparkSession,
    tmp_path: Path,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten orders, two of them dead letters, put back and accepted: what the tutorial promises, it asserts itself. Its
    Python blocks are typed line by line, as at the prompt."""
    assert service
    environment = {"SHAREQUEUE_HOME": str(settings.home), "SHAREQUEUE_JARS": str(settings.jars)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    page, names = "docs/tutorial/first-queue.md", {"__name__": "__main__"}
    reader = Reader(tmp_path, environment, database, programs)
    try:
        for block in blocks(page):
            if block.language == "python":
                type_lines(block.text, str(block), names)
            elif block.language in RUN:
                reader.run(block)
    finally:
        reader.end()
        for topic in ("parcels", "dlq.parcels"):
            topics.delete(topic)
