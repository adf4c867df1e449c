"""The manifests of docker/kubernetes/ are valid, agree with each other and with the code.

No cluster is needed: they are read, put together as kustomize does, and validated against the strict JSON schema of
Kubernetes 1.33. Of this schema `kubernetes-1.33.json` has the kinds that are used, because the package it is from
(kubernetes-validate) has 72 MB. Their commands are those of the compose file, which run as processes in
`deep_containers.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import sqlalchemy as sa
import yaml

from sharequeue import __version__
from sharequeue.domain.settings import Settings
from sharequeue.domain.settings.settings import Environment
from sharequeue.groups.configs.keys import SERVICE_CONFIGS
from sharequeue.groups.configs.names import environment_name
from sharequeue.service import probes, server
from sharequeue.service.app import create_app
from sharequeue.service.edge.hosts import LOOPBACK_HOSTS
from tests.integration.local.docker_files import DOCKER, image_environment, mount_points, ours

FOLDER = DOCKER / "kubernetes"
SCHEMA = json.loads((Path(__file__).parent / "kubernetes-1.33.json").read_text())
LOGINS = {
    "migrate": "sharequeue_migrate",
    "dagster-migrate": "dagster",
    "service": "sharequeue_serve",
    "dagster-webserver": "sharequeue_jobs",
    "dagster-daemon": "sharequeue_jobs",
}


def documents(folder: Path) -> Iterator[dict[str, Any]]:
    """What `kubectl apply -k` sends: the resources of a folder's kustomization, and of the folders that it names."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for name in kustomization["resources"]:
        place = folder / name
        yield from documents(place) if place.is_dir() else yaml.safe_load_all(place.read_text())


ALL = [*documents(FOLDER / "migrate"), *documents(FOLDER / "run")]
OBJECTS = {(each["kind"], each["metadata"]["name"]): each for each in ALL}
PODS = {
    name: each["spec"]["template"] for (kind, name), each in OBJECTS.items() if kind in ("Deployment", "Job")
}
CONTAINERS = {name: pod["spec"]["containers"][0] for name, pod in PODS.items()}


def environment(name: str) -> dict[str, str]:
    """What the container finds, as the kubelet puts it together."""
    found: dict[str, str] = {}
    for source in CONTAINERS[name].get("envFrom", []):
        found |= OBJECTS["ConfigMap", source["configMapRef"]["name"]]["data"]
    given: dict[str, str] = {}
    for each in CONTAINERS[name]["env"]:
        if "valueFrom" in each:
            reference = each["valueFrom"]["configMapKeyRef"]
            value = OBJECTS["ConfigMap", reference["name"]]["data"][reference["key"]]
        else:
            value = re.sub(r"\$\((\w+)\)", lambda at: given[at[1]], each["value"])
        given[each["name"]] = value
    return found | given


def selects(labels: dict[str, str]) -> set[str]:
    """The pods that a selector finds."""
    return {name for name, pod in PODS.items() if labels.items() <= pod["metadata"]["labels"].items()}


@pytest.mark.parametrize("key", OBJECTS, ids="-".join)
def test_every_manifest_is_valid(key: tuple[str, str]) -> None:
    """Kubernetes' own schema, in which a field that is not known is a mistake; and all are in our namespace."""
    schema = {"$ref": f"#/$defs/{SCHEMA['kinds'][key[0]]}", "$defs": SCHEMA["$defs"]}
    faults = [
        f"{list(each.path)}: {each.message}"
        for each in jsonschema.Draft7Validator(schema).iter_errors(OBJECTS[key])
    ]
    assert faults == []
    assert key[0] == "Namespace" or OBJECTS[key]["metadata"]["namespace"] == "sharequeue"


def test_the_schema_refuses_a_field_that_there_is_not() -> None:
    """A probe with a misspelt field is no probe."""
    schema = {"$ref": "#/$defs/io.k8s.api.core.v1.Probe", "$defs": SCHEMA["$defs"]}
    assert [*jsonschema.Draft7Validator(schema).iter_errors({"periodSecond": 5})]


def test_every_file_is_part_of_a_kustomization() -> None:
    """No manifest lies there unused; the image's tag is this release's wherever it is."""
    files = {file for file in FOLDER.rglob("*.yaml") if file.name != "kustomization.yaml"}
    named = set()
    for file in FOLDER.rglob("kustomization.yaml"):
        content = yaml.safe_load(file.read_text())
        named |= {file.parent / name for name in content["resources"] if name.endswith(".yaml")}
        assert [each["newTag"] for each in content.get("images", [])] in ([], [__version__])
    assert named == files
    assert {each["image"] for each in CONTAINERS.values()} == {f"sharequeue:{__version__}"}


@pytest.mark.parametrize("name", CONTAINERS)
def test_settings_are_ones_the_code_reads(name: str, no_environment: pytest.MonkeyPatch) -> None:
    """No SHAREQUEUE_* name is unknown, no URL has a password, and the login is that of the process."""
    given = environment(name)
    known = {f"SHAREQUEUE_{field.upper()}" for field in Environment.model_fields}
    known |= {environment_name(config) for config in SERVICE_CONFIGS} | {
        "POSTGRES_ADDRESS",
        "POSTGRES_PARAMETERS",
    }
    assert given.keys() <= known
    for variable, value in given.items():
        no_environment.setenv(variable, value)
    found = Settings.load()
    urls = [
        getattr(found, each)
        for each in ("database_url", "dagster_url")
        if f"SHAREQUEUE_{each.upper()}" in given
    ]
    logins = [sa.make_url(url) for url in urls]
    assert [url.password for url in logins] == [None for _ in logins]
    expected = [LOGINS[name]] if len(logins) == 1 else [LOGINS[name], "dagster"]
    assert [url.username for url in logins] == expected
    assert found.database.pool_size >= 1
    # The password files of these logins, and for runs the token.
    [projected] = [each for each in PODS[name]["spec"]["volumes"] if each["name"] == "secrets"]
    mounted = {each["secret"]["name"] for each in projected["projected"]["sources"]}
    token = {"sharequeue-token"} if found.service_token_file else set()
    assert mounted == {f"sharequeue-{login.removeprefix('sharequeue_')}" for login in expected} | token
    readme = (DOCKER / "README.md").read_text()
    assert all(f"create secret generic {each}" in readme for each in token)
    assert "for name in migrate serve jobs dagster; do" in readme


@pytest.mark.parametrize("name", CONTAINERS)
def test_commands_are_those_of_the_compose_file(name: str) -> None:
    """Which are held against the command line, and run, elsewhere."""
    assert CONTAINERS[name]["args"] == ours()[name]["command"]
    assert "command" not in CONTAINERS[name], "the image's entry point stays"


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_pod_can_do_no_more_than_it_needs(name: str) -> None:
    """The image's user, no privileges, a root file system that is read-only, bounds; what is mounted is there."""
    pod, container = PODS[name]["spec"], CONTAINERS[name]
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert ("ServiceAccount", pod["serviceAccountName"]) in OBJECTS
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"].keys() == {"requests", "limits"}
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert {*mounts.values()} == {each["name"] for each in pod["volumes"]}
    assert mounts.keys() <= {*mount_points(), "/tmp", "/run/secrets"}  # noqa: S108
    assert {"/tmp", "/run/secrets", str(Path(image_environment()["PGPASSFILE"]).parent)} <= mounts.keys()  # noqa: S108
    for volume in pod["volumes"]:
        if claim := volume.get("persistentVolumeClaim"):
            assert ("PersistentVolumeClaim", claim["claimName"]) in OBJECTS
    if name == "dagster-daemon":  # the token comes as a Secret
        assert mounts.keys() >= {*mount_points()} - {"/var/lib/sharequeue/tokens"}


def test_the_service_is_updated_without_a_gap() -> None:
    """Two replicas, of which no update and no drain takes both; each ends only when nobody is sent there."""
    spec = OBJECTS["Deployment", "service"]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    budget = OBJECTS["PodDisruptionBudget", "service"]["spec"]
    assert (budget["maxUnavailable"], selects(budget["selector"]["matchLabels"])) == (1, {"service"})
    [apart] = PODS["service"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert selects(apart["podAffinityTerm"]["labelSelector"]["matchLabels"]) == {"service"}
    pause = CONTAINERS["service"]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert PODS["service"]["spec"]["terminationGracePeriodSeconds"] > pause + server._SHUTDOWN_SECONDS + 2
    ready = CONTAINERS["service"]["readinessProbe"]
    assert ready["timeoutSeconds"] > probes._DATABASE_TIMEOUT_S
    assert OBJECTS["Deployment", "dagster-daemon"]["spec"]["strategy"] == {"type": "Recreate"}


def test_probes_ask_what_the_service_answers() -> None:
    """Paths are served, and the host that a probe names is one that the service answers to."""
    settings = Settings({"database_url": "postgresql://localhost/x", "bootstrap_servers": "localhost:9092"})
    app = create_app(settings, coordinate=False, require_token=True)
    paths = {route.path for route in app.routes}  # type: ignore[attr-defined]
    app.state.service.close()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = CONTAINERS["service"][probe]["httpGet"]
        assert asked["path"] in paths
        [host] = asked["httpHeaders"]
        assert host["name"] == "Host"
        assert host["value"] in LOOPBACK_HOSTS
    assert CONTAINERS["service"]["livenessProbe"]["httpGet"]["path"] == "/health"
    assert CONTAINERS["service"]["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_ports_and_names_agree() -> None:
    """Command, container, Service, network policies and the address that callers have."""
    for name, label in (("service", "sharequeue-service"), ("dagster-webserver", "sharequeue-webserver")):
        args = CONTAINERS[name]["args"]
        port = int(args[args.index("--port") + 1])
        [own] = CONTAINERS[name]["ports"]
        assert own["containerPort"] == port
        [offered] = OBJECTS["Service", name]["spec"]["ports"]
        assert offered["targetPort"] == own["name"]
        assert selects(OBJECTS["Service", name]["spec"]["selector"]) == {name}
        policies = [each["spec"] for (kind, _), each in OBJECTS.items() if kind == "NetworkPolicy"]
        [way_in] = [
            p for p in policies if p["podSelector"].get("matchLabels") == {"app.kubernetes.io/name": label}
        ]
        assert [each["port"] for rule in way_in["ingress"] for each in rule["ports"]] == [port]
    url = sa.make_url(OBJECTS["ConfigMap", "sharequeue"]["data"]["SHAREQUEUE_SERVICE_URL"])
    [offered] = OBJECTS["Service", "service"]["spec"]["ports"]
    assert (url.host, url.port) == ("service", offered["port"])
    hosts = OBJECTS["ConfigMap", "service"]["data"]["SHAREQUEUE_SERVICE_ALLOWED_HOSTS"].split(",")
    assert url.host in hosts
    for (kind, _), each in OBJECTS.items():
        if kind in ("Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"):
            text = json.dumps(each)
            for label in re.findall(r'"app.kubernetes.io/name": "([^"]+)"', text):
                assert selects({"app.kubernetes.io/name": label}), label
    assert {("NetworkPolicy", "nothing-else"), ("NetworkPolicy", "to-servers")} <= OBJECTS.keys()
