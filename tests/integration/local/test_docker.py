"""The production-like stack of docker/ agrees with the code.

No Docker engine is needed: the Dockerfile and the compose file are read. What their commands do as processes is in
`deep_containers.py`. What only an engine can show, such as that the image builds, is not shown here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest
import sqlalchemy as sa

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.domain.settings import KAFKA_PREFIX, RoleNames, Settings
from sharequeue.domain.settings.settings import Environment
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.keys import SERVICE_CONFIGS
from sharequeue.groups.configs.names import environment_name
from sharequeue.kafka.clients import spark_options
from sharequeue.local import jars, kafka, ports
from sharequeue.local.home import Home
from sharequeue.local.preflight import JAVA_MAJORS, PYTHON_MINORS, find_java
from sharequeue.local.stack import StackInfo
from tests.integration.local.docker_files import (
    DOCKER,
    REPOSITORY,
    compose,
    dockerfile,
    entry_point,
    environment,
    image_environment,
    interpolate,
    mount_points,
    ours,
    variables,
)

SERVICES: dict[str, Any] = compose()["services"]
ROLES = (DOCKER / "initdb" / "10_roles.sql").read_text()
LOGINS = {
    "migrate": "sharequeue_migrate",
    "tokens": "sharequeue_serve",
    "service": "sharequeue_serve",
    "demo-group": "sharequeue_serve",
    "dagster-webserver": "sharequeue_jobs",
    "dagster-daemon": "sharequeue_jobs",
    "demo": "sharequeue_jobs",
    "reports": "sharequeue_reports",
}
"""As whom each container asks our database."""


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
    known = {f"SHAREQUEUE_{field.upper()}" for field in Environment.model_fields}
    known |= {environment_name(config) for config in SERVICE_CONFIGS}
    assert named - kafka_names <= known
    file = tmp_path / "ca.pem"
    file.write_text("-----BEGIN CERTIFICATE-----")
    for name in kafka_names:
        kinds = {"PROTOCOL": "SASL_SSL", "MECHANISM": "PLAIN", "LOCATION": str(file), "FILE": str(file)}
        no_environment.setenv(name, kinds.get(name.rpartition("_")[2], "given"))
    no_environment.setenv("SHAREQUEUE_BOOTSTRAP_SERVERS", "broker:9092")
    found = Settings.load()
    assert len(found.kafka) == len(kafka_names)
    spark_options(found)  # raises for a name that has no counterpart in Java


@pytest.mark.parametrize("role", [*LOGINS, "dagster-migrate"])
def test_a_container_has_its_own_login_and_no_others_password(
    role: str, no_environment: pytest.MonkeyPatch
) -> None:
    """The database's address is that of the container beside it, without a password; the password files are those of
    the logins that the container uses."""
    found, files = settings_of(role, {}, no_environment), set()
    for known, variable, login in (
        (found.knows("database_url"), "SHAREQUEUE_DATABASE_URL", LOGINS.get(role)),
        (found.knows("dagster_url"), "SHAREQUEUE_DAGSTER_URL", "dagster"),
    ):
        if variable not in SERVICES[role]["environment"]:
            continue
        assert known
        url = sa.make_url(found.database_url if "DATABASE" in variable else found.dagster_url)
        assert (url.drivername, url.host, url.port) == ("postgresql+psycopg2", "postgres", 5432)
        assert (url.username, url.password) == (login, None)
        assert f"alter database {url.database} owner" in ROLES
        files.add(f"{login}".removeprefix("sharequeue_") + ".pgpass")
    assert set(SERVICES[role]["secrets"]) == files


@pytest.mark.parametrize("role", ["service", "dagster-daemon", "demo"])
def test_a_container_knows_every_address(role: str, no_environment: pytest.MonkeyPatch) -> None:
    """Nothing falls back to a default of the embedded stack, and every address is one of another container."""
    found = settings_of(role, {}, no_environment)
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
        "POSTGRES_ADDRESS": "db:1",
        "POSTGRES_PARAMETERS": "?sslmode=require",
        "SHAREQUEUE_BOOTSTRAP_SERVERS": "broker:2",
        "SHAREQUEUE_SERVICE_URL": "http://host:3",
        "SHAREQUEUE_SPARK_MASTER": "spark://host:4",
        "SHAREQUEUE_KAFKA_SASL_USERNAME": "me",
    }
    found = settings_of("dagster-daemon", theirs, no_environment)
    assert found.database_url == "postgresql+psycopg2://sharequeue_jobs@db:1/sharequeue?sslmode=require"
    assert found.dagster_url == "postgresql+psycopg2://dagster@db:1/dagster?sslmode=require"
    assert found.bootstrap_servers == "broker:2"
    assert (found.service_url, found.spark_master) == ("http://host:3", "spark://host:4")
    assert found.kafka == {"sasl.username": "me"}
    assert all(f"`{name}`" in (DOCKER / "README.md").read_text() for name in list(theirs)[:5])


def test_the_logins_have_the_roles_that_the_schema_knows() -> None:
    """The script makes the group roles under the code's own names; each login of a container is made, gets its
    password from the file of that name, and is in the roles that the how-to gives it."""
    groups = RoleNames()
    granted = {login: given for given, login in re.findall(r"grant (.*) to (sharequeue_\w+);", ROLES)}
    assert granted == {
        "sharequeue_migrate": groups.owner,
        "sharequeue_serve": groups.service,
        "sharequeue_jobs": f"{groups.worker}, {groups.reader}",
        "sharequeue_reports": groups.reader,
    }
    assert all(f"'{name}'" in ROLES for name in groups)
    assert {*LOGINS.values()} == granted.keys()
    for login in (*granted, "dagster"):
        name = login.removeprefix("sharequeue_")
        assert f"alter role {login} login password :'{name}';" in ROLES
        assert f":'secrets'/{name}.pgpass" in ROLES
        assert f"'*:*:*:{login}:'" in (DOCKER / "secrets.sh").read_text()
    declared = compose()["secrets"]
    kept = re.findall(r"^keep (\S+)", (DOCKER / "secrets.sh").read_text(), re.MULTILINE)
    assert {name: each["file"] for name, each in declared.items()} == {n: f"./secrets/{n}" for n in kept}
    assert SERVICES["postgres"]["secrets"] == kept, "it sets the passwords"


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_can_do_more_than_it_needs(name: str) -> None:
    """No privileges, bounds on processor, memory and processes, logs that rotate; ours write only to mounts."""
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service.get("read_only", False) is (name not in ("kafka", "demo"))
    if name in ours():
        assert {each.split(":")[0] for each in service["tmpfs"]} == {"/tmp", "/run/sharequeue"}  # noqa: S108
        assert "exec" in service["tmpfs"][0].split(":")[1].split(",")


def test_who_calls_the_service_needs_a_token(no_environment: pytest.MonkeyPatch) -> None:
    """It requires one, and who calls it finds one where it is made."""
    assert "--require-token" in SERVICES["service"]["command"]
    *_, principal, file = SERVICES["tokens"]["command"]
    assert principal == f"User:{LOGINS['dagster-daemon']}", "the same in SQL and over HTTP"
    for role in ("dagster-daemon", "demo"):
        assert str(settings_of(role, {}, no_environment).service_token_file) == file
        assert "tokens" in SERVICES[role]["depends_on"]


@pytest.mark.parametrize(
    "name", [name for name, each in ours().items() if each["command"][0] == "sharequeue"]
)
def test_commands_are_ones_that_the_code_has(name: str) -> None:
    """Every `sharequeue …` parses with the real command line, and no option of it is unknown."""
    first, *arguments = ours()[name]["command"]
    current: click.Command = command
    context = click.Context(command, info_name=first)
    while isinstance(current, click.Group):
        found = current.get_command(context, arguments.pop(0))
        assert found is not None
        current = found
    current.make_context(name, arguments)


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
    owned = [
        each.text
        for each in dockerfile()
        if "chown -R sharequeue:sharequeue /var/lib/sharequeue" in each.text
    ]
    assert owned
    mounts = [
        (name, *f":{each}".rsplit(":/", 1)) for name, s in SERVICES.items() for each in s.get("volumes", [])
    ]
    mounts = [(name, source.strip(":"), f"/{target.partition(':')[0]}") for name, source, target in mounts]
    named = {source for _, source, _ in mounts if source and not source.startswith(".")}
    assert named == compose()["volumes"].keys()
    for name, source, target in mounts:
        assert not source.startswith(".") or (DOCKER / source).is_dir()
        assert name not in ours() or target in mount_points()
    output = environment(SERVICES["demo"], {})["SHAREQUEUE_OUTPUT"]
    sharing = {name for name, _, target in mounts if target == output}
    writing = {"spark-worker", "dagster-daemon", "demo"}
    assert sharing == {*writing, "service"}, (
        "driver and executors write to one place, and the service reads there"
    )
    assert [each for each in SERVICES["service"]["volumes"] if not each.endswith(":ro")] == []
    assert Path(output).is_relative_to(image_environment()["SHAREQUEUE_HOME"])
    daemon = {target for name, _, target in mounts if name == "dagster-daemon"}
    assert daemon == {*mount_points()} - {"/run/sharequeue"}, "nothing else can be written"
    assert mount_points()[-1] == str(Path(image_environment()["PGPASSFILE"]).parent)


def test_versions_are_pinned_and_are_those_of_the_code(database: Database) -> None:
    """Kafka's, Postgres', Java's, Python's and our own."""
    tags = dict(service["image"].rsplit(":", 1) for service in SERVICES.values())
    assert f"kafka_2.13-{tags['apache/kafka']}.jar" in jars.expected(jars.BROKER)
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
    user = [each.text for each in dockerfile() if each.word == "USER"]
    assert user == ["10001:10001"]
    assert any("useradd --uid 10001" in each.text for each in dockerfile())
    program, folder = entry_point()
    assert [
        os.access(REPOSITORY / name, os.X_OK)
        for name in (Path(program).relative_to("/opt/sharequeue"), "docker/token.sh")
    ] == [True, True]
    assert folder == "/run/secrets"


def test_the_script_of_the_build_does_what_it_is_for(stack: StackInfo, tmp_path: Path) -> None:
    """A whole set of jars is taken as it is. The packages are those of a lock file (`test_lock.py`)."""
    [resolve] = [each.body for each in dockerfile() if each.body]
    assert _script(resolve.replace("/opt/jars", str(stack.jars)), tmp_path) == ""


def test_the_brokers_settings_are_the_embedded_ones_and_it_takes_them(
    stack: StackInfo, tmp_path: Path
) -> None:
    """What both brokers set they set alike, but for addresses; Kafka's own tool accepts the container's."""
    given = environment(SERVICES["kafka"], {})
    cluster = given.pop("CLUSTER_ID")
    own = {name.removeprefix("KAFKA_").lower().replace("_", "."): value for name, value in given.items()}
    lines = (kafka.SETTINGS + kafka.ADDRESS).splitlines()
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
    assert "sh docker/secrets.sh" in text
    assert "docker compose -f docker/compose.yaml up" in text
    for service in SERVICES.values():
        for published in service.get("ports", []):
            assert f"127.0.0.1:{interpolate(published, {}).split(':')[1]}" in text
            assert all(f"`{name}`" in text for name in variables(published))


def _script(text: str, directory: Path) -> str:
    """What a heredoc of the Dockerfile prints."""
    ran = subprocess.run(
        [sys.executable, "-"], input=text, cwd=directory, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
