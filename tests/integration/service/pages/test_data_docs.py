"""The Data Docs at the service: for callers who may read what is in them, and sandboxed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.acls import Acl, Acls
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.tokens import Tokens
from sharequeue.reports.data_docs import context_folder, data_docs_address, site_folder
from sharequeue.state import State
from tests.integration.service.pages.pages_client import client_of, got, here_of

SERVICE = "http://localhost"


def written(settings: Settings, group: str) -> Path:
    """Write a page and a picture as Great Expectations would; return their folder."""
    site = site_folder(context_folder(settings, group))
    (site / "static").mkdir(parents=True)
    (site / "index.html").write_text("<html><script>var values = 1</script></html>")
    (site / "static" / "logo.png").write_bytes(b"png")
    (site / "secret.json").write_text("{}")
    return site


def path_of(settings: Settings, group: str) -> str:
    """The path of the group's Data Docs at the service."""
    return data_docs_address(settings, group).removeprefix(SERVICE)


def test_the_pages_show_in_a_browser(settings: Settings, private_database: Database, tmp_path: Path) -> None:
    """Each file has its type. Scripts and styles of the page run, but without the reader's rights: it is sandboxed.
    No path leads out of the folder."""
    here = here_of(settings, private_database).replace(home=tmp_path, service_url=SERVICE)
    for group in ("g", "a/b"):
        alter_group_configs(private_database, group, {})
        written(here, group)
    with client_of(here) as client:
        for group in ("g", "a/b"):
            page = client.get(path_of(here, group))
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert "values = 1" in page.text
        policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
        assert "'unsafe-inline'" in policy["script-src"]
        assert "'unsafe-inline'" in policy["style-src"]
        assert "allow-scripts" in policy["sandbox"]
        assert "allow-same-origin" not in policy["sandbox"]
        assert policy["default-src"] == "'none'"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["cross-origin-resource-policy"] == "same-origin"
        logo = client.get("/v1/data-docs/g/static/logo.png")
        assert (logo.content, logo.headers["content-type"]) == (b"png", "image/png")
        assert logo.headers["cross-origin-resource-policy"] == "cross-origin"
        for wrong in ("secret.json", "static/%2e%2e/index.html", "..%2f..%2f..%2f..%2f.lock", "nothing.html"):
            assert "data folder" in got(client, f"/v1/data-docs/g/{wrong}", 404).text
        assert client.get("/v1/data-docs/nosuch/index.html").status_code == 404


def test_who_may_not_read_the_letters_sees_no_data_docs(
    settings: Settings, private_database: Database, tmp_path: Path
) -> None:
    """The pages have values of records: they need DESCRIBE on the group and its topics, as the report, and READ on
    them and on the dead-letter topic, as the letters."""
    here = here_of(settings, private_database).replace(home=tmp_path, service_url=SERVICE)
    state, acls = State(private_database), Acls(private_database)
    alter_group_configs(private_database, "g", {"errors.deadletterqueue.topic.name": "dlq"})
    state.initialize(SharePartition("g", "t", 0), "id-t", 0, 2)
    written(here, "g")
    rights = {"GROUP": "g", "TOPIC": "t", "DLQ": "dlq"}
    for kind, name in rights.items():
        resource = "GROUP" if kind == "GROUP" else "TOPIC"
        acls.add(Acl("User:all", "ALL", "ALLOW", "LITERAL", name, resource))
        for lacking in rights:
            operation = "DESCRIBE" if lacking == kind else "READ"
            acls.add(Acl(f"User:no-{lacking}", operation, "ALLOW", "LITERAL", name, resource))
    path = path_of(here, "g")
    with client_of(here) as client:
        for user, status in (("all", 200), ("no-GROUP", 403), ("no-TOPIC", 403), ("no-DLQ", 403)):
            _, secret = Tokens(private_database).create(f"User:{user}")
            assert client.get(path, auth=("x", secret)).status_code == status, user
        assert client.get(path).status_code == 403
    with client_of(here, require_token=True) as client:
        asked = client.get(path)
        assert (asked.status_code, asked.headers["www-authenticate"][:5]) == (401, "Basic")


def test_data_docs_of_a_deleted_group_are_not_those_of_a_later_one_of_its_name(
    settings: Settings, private_database: Database, tmp_path: Path
) -> None:
    """The pages of the deleted group have values of its letters. They are not returned, until the checks of the
    later group have written its own."""
    here = here_of(settings, private_database).replace(home=tmp_path, service_url=SERVICE)
    alter_group_configs(private_database, "g", {})
    site = written(here, "g")
    path = path_of(here, "g")
    with client_of(here) as client:
        assert client.get(path).status_code == 200
        State(private_database).administration.delete_group("g")
        assert client.get(path).status_code == 404
        alter_group_configs(private_database, "g", {})
        os.utime(site / "index.html", (time.time() - 60, time.time() - 60))
        assert "data folder" in got(client, path, 404).text
        os.utime(site / "index.html", (time.time() + 60, time.time() + 60))
        assert client.get(path).status_code == 200
