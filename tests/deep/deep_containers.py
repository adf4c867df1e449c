"""The commands of our containers run as written, as processes against the test's servers (`docker_files.py`).

Each under the login that the compose file gives it, which the script of `docker/initdb` makes.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from sharequeue.database import Database
from sharequeue.database.migrations import pending
from sharequeue.local import postgres
from sharequeue.local.stack import StackInfo
from tests.fixtures.stack import MakeTopic, jars_folder
from tests.integration.local.docker_files import (
    DOCKER,
    REPOSITORY,
    Containers,
    compose,
    interpolate,
    ours,
)
from tests.waiting import wait_until

SERVICES: dict[str, Any] = compose()["services"]
LOGINS = ("sharequeue_migrate", "sharequeue_serve", "sharequeue_jobs", "sharequeue_reports", "dagster")
GROUPS = ("sharequeue_owner", "sharequeue_service", "sharequeue_worker", "sharequeue_reader")


@pytest.fixture(scope="module")
def containers(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Our containers, brought up in the order of their conditions, against empty databases of their own."""
    root = tmp_path_factory.mktemp("docker")
    (root / "dagster").mkdir()
    (root / "dagster" / "dagster.yaml").write_text((REPOSITORY / "dagster.yaml").read_text())
    secrets = _secrets(root)
    prefix = f"docker_{uuid.uuid4().hex[:10]}_"
    url = sa.make_url(stack.database_url)
    given = {
        "POSTGRES_ADDRESS": f"{url.host}:{url.port}",
        "SHAREQUEUE_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
    }
    try:
        for _ in range(2):  # once more is harmless
            _psql(url, "-v", f"secrets={secrets}", script=_roles(prefix))
        with Containers(root, given, jars_folder(), secrets, prefix) as found:
            _up(found)
            yield found
        assert not found.alive()
    finally:
        for name in ("sharequeue", "dagster"):
            _psql(url, "-c", f"drop database if exists {prefix}{name} with (force)")
        _psql(url, "-c", f"drop role {', '.join((*LOGINS, *GROUPS))}")


def _secrets(root: Path) -> Path:
    """The folder that `secrets.sh` makes; a second run of it changes nothing."""
    folder = root / "compose"
    folder.mkdir()
    shutil.copy(DOCKER / "secrets.sh", folder)
    made = []
    for _ in range(2):
        subprocess.run(["sh", folder / "secrets.sh"], check=True)
        made.append({file.name: file.read_text() for file in (folder / "secrets").iterdir()})
    assert made[0] == made[1]
    assert (folder / "secrets").stat().st_mode & 0o777 == 0o700
    assert len({text.rpartition(":")[2] for text in made[0].values()}) == len(made[0]) == len(LOGINS) + 1
    return folder / "secrets"


def _roles(prefix: str) -> str:
    """The script for Postgres, with databases of the test's."""
    text = (DOCKER / "initdb" / "10_roles.sql").read_text()
    for name in ("sharequeue", "dagster"):
        text = text.replace(f"create database {name}", f"create database {prefix}{name}")
        text = text.replace(f"datname = '{name}'", f"datname = '{prefix}{name}'")
        text = text.replace(f"alter database {name} ", f"alter database {prefix}{name} ")
    text = text.replace("on database sharequeue, dagster", f"on database {prefix}sharequeue, {prefix}dagster")
    return text.replace("on database sharequeue ", f"on database {prefix}sharequeue ")


def _psql(url: sa.URL, *arguments: str, script: str = "") -> None:
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    program = postgres._binaries() / "psql"
    ran = subprocess.run(
        [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", *arguments, plain],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def _url(containers: Containers, login: str, database: str = "sharequeue") -> sa.URL:
    """The address of a login's connections, with its password."""
    name = login.removeprefix("sharequeue_")
    password = (containers.secrets / f"{name}.pgpass").read_text().strip().rpartition(":")[2]
    host, port = containers.given["POSTGRES_ADDRESS"].split(":")
    return sa.URL.create(
        "postgresql+psycopg2", login, password, host, int(port), f"{containers.prefix}{database}"
    )


def _does(containers: Containers, login: str, statement: str, database: str = "sharequeue") -> None:
    url = _url(containers, login, database).set(drivername="postgresql")
    connection = psycopg2.connect(url.render_as_string(hide_password=False))
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()


def _up(containers: Containers) -> None:
    """What `docker compose up` does with our services."""
    services = {name: service for name, service in ours().items() if "profiles" not in service}
    reached = {"postgres", "kafka"}  # the test's

    def step() -> bool:
        for name, service in services.items():
            replicas = range(1, service.get("deploy", {}).get("replicas", 1) + 1)
            if f"{name}-1" not in containers.running:
                if service.get("depends_on", {}).keys() <= reached:
                    for number in replicas:
                        containers.start(name, number)
            elif name not in reached:
                done = containers.healthy if "healthcheck" in service else containers.completed
                if all(done(f"{name}-{number}") for number in replicas):
                    reached.add(name)
        return services.keys() <= reached

    wait_until(step, 120, lambda: f"not up: {', '.join(sorted(services.keys() - reached))}")


def test_migrate_brings_up_the_schema(containers: Containers) -> None:
    """The one-shot container leaves an empty database with the whole schema, whose owner is the role for that."""
    assert containers.completed("migrate-1")
    url = _url(containers, "sharequeue_migrate").render_as_string(hide_password=False)
    with Database(url) as database:
        assert pending(database) == []
        owner = "select pg_get_userbyid(nspowner) as owner from pg_namespace where nspname = 'sharequeue'"
        assert [row["owner"] for row in database.rows(sa.text(owner))] == ["sharequeue_owner"]


@pytest.mark.parametrize(
    ("login", "may", "may_not"),
    [
        ("sharequeue_serve", "select from sharequeue.share_partitions", "create table public.t (a int)"),
        ("sharequeue_serve", "select sharequeue.clock()", "drop table sharequeue.share_groups"),
        ("sharequeue_jobs", "select from sharequeue.audit_trail", "select from sharequeue.share_partitions"),
        ("sharequeue_jobs", "select * from sharequeue.verify()", "select sharequeue.raise_state_epochs()"),
        ("sharequeue_reports", "select * from sharequeue.verify()", "select sharequeue.sweep(1)"),
        ("dagster", "select", "select from sharequeue.audit_trail"),
    ],
)
def test_a_login_has_only_the_rights_of_its_process(
    containers: Containers, login: str, may: str, may_not: str
) -> None:
    """A right that it has, and one that only another process has."""
    own = "dagster" if login == "dagster" else "sharequeue"
    _does(containers, login, may, own)
    with pytest.raises(psycopg2.Error, match=r"permission denied|must be owner|does not exist"):
        _does(containers, login, may_not, own)
    other = "sharequeue" if login == "dagster" else "dagster"
    with pytest.raises(psycopg2.OperationalError, match="permission denied for database"):
        _does(containers, login, "select", other)


def test_the_service_is_alive_and_requires_a_token(containers: Containers) -> None:
    """It answers under the port of its command, finds schema and broker, and refuses who shows no token. The file
    that Dagster's runs are pointed to holds one, and a new one leaves it in force."""
    url = f"http://127.0.0.1:{containers.port('service-1', 28080)}"
    assert httpx.get(f"{url}/health", trust_env=False).json()["status"] == "alive"
    wait_until(lambda: httpx.get(f"{url}/ready", trust_env=False).is_success, 60, "the service is not ready")
    assert httpx.get(f"{url}/v1/groups", trust_env=False).status_code == 401
    file = containers.root / "tokens" / "jobs"
    assert file.stat().st_mode & 0o777 == 0o600
    with_token = {"Authorization": f"Bearer {file.read_text().strip()}"}
    assert httpx.get(f"{url}/v1/groups", headers=with_token, trust_env=False).status_code == 200
    containers.start("tokens", 2)
    wait_until(lambda: containers.completed("tokens-2"), 60, "a new token")
    assert httpx.get(f"{url}/v1/groups", headers=with_token, trust_env=False).status_code == 200


def test_each_process_is_logged_in_as_itself(containers: Containers, stack: StackInfo) -> None:
    """No process of ours asks Postgres as its superuser."""
    with Database(stack.database_url) as database:
        names = sa.text("select distinct usename as name from pg_stat_activity where datname like :ours")
        found = {row["name"] for row in database.rows(names, ours=f"{containers.prefix}%")}
    # Dagster's connections come and go.
    assert {"sharequeue_serve"} <= found <= {"sharequeue_serve", "sharequeue_jobs", "dagster"}


def test_reports_are_read_by_the_login_of_readers(containers: Containers) -> None:
    """The command of the container `reports` answers. What its login may not do is shown above."""
    containers.start("reports")
    wait_until(lambda: containers.completed("reports-1"), 60, "the groups")


def test_the_webserver_loads_the_code_location(containers: Containers) -> None:
    """Dagster's UI answers, and the workspace in the image leads to the definitions."""
    url = f"http://127.0.0.1:{containers.port('dagster-webserver-1', 3000)}"
    assert "dagster_webserver_version" in httpx.get(f"{url}/server_info", trust_env=False).json()
    query = "{workspaceOrError{...on Workspace{locationEntries{name locationOrLoadError{__typename}}}}}"
    result = httpx.post(f"{url}/graphql", json={"query": query}, timeout=30, trust_env=False).json()
    [entry] = result["data"]["workspaceOrError"]["locationEntries"]
    assert entry == {"name": "sharequeue", "locationOrLoadError": {"__typename": "RepositoryLocation"}}


def test_the_daemon_runs_without_complaints(containers: Containers) -> None:
    """Its heartbeats were seen, or the stack would not be up; it goes on, and complains about nothing."""
    assert containers.running["dagster-daemon-1"].poll() is None
    assert "Traceback" not in containers.log("dagster-daemon-1")


def test_the_workers_are_with_the_master(containers: Containers) -> None:
    """Master and workers run from the pyspark package, and as many as there are replicas have registered."""
    url = f"http://127.0.0.1:{containers.port('spark-master-1', 8080)}/json/"

    def registered() -> bool:
        alive = httpx.get(url, trust_env=False).json()["aliveworkers"]
        return bool(alive == SERVICES["spark-worker"]["deploy"]["replicas"])

    wait_until(registered, 30, "not every worker has registered")


@pytest.mark.deep
@pytest.mark.slow
def test_the_cluster_works_for_our_drivers(containers: Containers, make_topic: MakeTopic) -> None:
    """A run's session reads Kafka, runs our Python on the workers, and finds what they wrote in the shared folder.

    It takes the cores that the master grants to one run and leaves the others.
    """
    topic = make_topic(partitions=2)
    producer = Producer({"bootstrap.servers": containers.given["SHAREQUEUE_BOOTSTRAP_SERVERS"]})
    for number in range(100):
        producer.produce(topic, str(number).encode(), partition=number % 2)
    assert producer.flush(30) == 0
    drove = containers.execute("demo", ["python", "-c", _ON_THE_CLUSTER, topic])
    assert drove.returncode == 0, drove.stderr[-3000:]
    assert drove.stdout.split()[-2:] == ["100", "0"]
    master = f"http://127.0.0.1:{containers.port('spark-master-1', 8080)}/json/"
    [app] = httpx.get(master, trust_env=False).json()["completedapps"]
    assert f"defaultCores={app['cores']}" in interpolate(
        SERVICES["spark-master"]["environment"]["SPARK_MASTER_OPTS"], {}
    )


def test_the_demos_group_is_configured_with_the_services_login(containers: Containers) -> None:
    """The one-shot container gives it its configs, with the login of the service."""
    containers.start("demo-group")
    wait_until(lambda: containers.completed("demo-group-1"), 60, "the configs of the demo's group")
    with Database(_url(containers, "sharequeue_serve").render_as_string(hide_password=False)) as database:
        assert database.rows(sa.text("select from sharequeue.group_configs where group_id = 'flight-delays'"))


def test_the_demo_starts(containers: Containers) -> None:
    """Its command is there; what it does is shown end to end elsewhere."""
    containers.start("demo", extra=["--help"])
    wait_until(lambda: containers.completed("demo-1"), 60, "the demo's help")
    assert "flight-delays" in containers.log("demo-1")


# Prints how many records came through, and how many of them were handled outside of an executor's folder.
_ON_THE_CLUSTER = """
import os, sys
import pyarrow as pa
from sharequeue.spark.session import spark_session
from sharequeue.kafka.clients import spark_options
from sharequeue.domain.settings import Settings

def handle(batches):
    import sharequeue.spark.output.files
    for batch in batches:
        yield pa.record_batch([batch["value"], [os.getcwd()] * len(batch)], ["value", "place"])

settings = Settings.load()
spark = spark_session(settings, "docker")
records = spark.read.format("kafka").options(**spark_options(settings)).option("subscribe", sys.argv[1]).load()
folder = f"{settings.output}/docker"
records.select("value").mapInArrow(handle, "value binary, place string").write.parquet(folder)
rows = spark.read.parquet(folder).collect()
print(len({bytes(row.value) for row in rows}), sum("/work/app-" not in row.place for row in rows))
spark.stop()
"""
