"""Bearer tokens: who calls the service over HTTP is somebody, for as long as the token is in force."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy.exc import ProgrammingError
from starlette.testclient import TestClient

from sharequeue import ShareConsumer
from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.database.pool import Joined
from sharequeue.domain.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidRequest,
    SaslAuthenticationFailed,
    ShareError,
)
from sharequeue.domain.settings import RoleNames, ServiceAddress, Settings
from sharequeue.groups import transports
from sharequeue.groups.acls import Acl, Acls, on_behalf_of
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.heartbeats import HeartbeatRequest
from sharequeue.groups.membership import Membership
from sharequeue.groups.tokens import Tokens
from sharequeue.groups.transports import ServiceTransport
from sharequeue.service import create_app
from sharequeue.service.admission import ANONYMOUS
from sharequeue.service.call import Call
from sharequeue.service.metrics.figures import Reader
from tests.integration.service.test_service import serving
from tests.waiting import PATIENCE_S

NOWHERE = "postgresql+psycopg2://nobody@127.0.0.1:1/none"
LIMIT = "share.delivery.count.limit"
CHANGE = {"group_id": "g", "configs": {LIMIT: "8"}}
PATH = "/v1/incremental-alter-configs"


def url_of(database: Database) -> str:
    return database.engine.url.render_as_string(hide_password=False)


@pytest.fixture
def client(settings: Settings, private_database: Database) -> Iterator[TestClient]:
    """Give a client of the service, without its coordinator; group g is there."""
    alter_group_configs(private_database, "g", {})
    app = create_app(settings.replace(database_url=url_of(private_database)), coordinate=False)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def refused(response: Any) -> None:
    """It is a 401 that says what to do, by Kafka's number."""
    assert response.status_code == 401, response.text
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.json()["error_code"] == SaslAuthenticationFailed.code == 58
    assert (
        "sharequeue tokens" in response.json()["error_message"] or "sq_" in response.json()["error_message"]
    )


def audit(database: Database) -> list[dict[str, Any]]:
    rows = database.rows(
        sa.text(
            "select principal, act, before, after from sharequeue.audit_trail"
            " where act <> 'set_service_configs' order by audit_id"
        )
    )
    return [dict(row) for row in rows]


def test_a_caller_with_a_token_is_its_principal(client: TestClient, private_database: Database) -> None:
    """ACLs decide for it, and the audit log has it; without a header the caller is nobody, as before."""
    _, secret = Tokens(private_database).create("User:ann", timedelta(days=1), "laptop")
    Acls(private_database).add(Acl("User:ann", "ALTER_CONFIGS", "ALLOW", "LITERAL", "g"))
    assert client.post(PATH, json=CHANGE).json()["error_code"] == GroupAuthorizationFailed.code
    assert client.post(f"{PATH}?access_token={secret}", json=CHANGE).json()["error_code"] == 30
    done = client.post(PATH, json=CHANGE, headers=bearer(secret))
    assert (done.status_code, done.json()["error_code"]) == (200, 0)
    assert GroupConfigs.load(private_database, "g").delivery_count_limit == 8
    (changed,) = [row for row in audit(private_database) if row["act"] == "alter_group_config"]
    assert changed["principal"] == "User:ann"
    deleted = client.post("/v1/delete-groups", json={"groups_names": ["g"]}, headers=bearer(secret)).json()
    assert deleted["results"][0]["error_code"] == GroupAuthorizationFailed.code
    assert "User:ann may not" in deleted["results"][0]["error_message"]
    # Whoever denies nobody, and allows all others, demands a token.
    Acls(private_database).add(Acl("User:*", "ALL", "ALLOW", "LITERAL", "*"))
    Acls(private_database).add(Acl(ANONYMOUS, "ALL", "DENY", "LITERAL", "*"))
    assert client.post(PATH, json=CHANGE).json()["error_code"] == GroupAuthorizationFailed.code
    assert client.post(PATH, json=CHANGE, headers=bearer(secret)).json()["error_code"] == 0


def test_an_invalid_authorization_header_is_refused(
    client: TestClient, private_database: Database, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """On every path below /v1: nothing is done, and it is not taken for no header. No secret is in the log."""
    caplog.set_level(logging.DEBUG)
    _, secret = Tokens(private_database).create("User:ann")
    other, of_another_database = Tokens(database).create("User:ann")
    try:
        for header in (
            *(
                "",
                "Bearer",
                "Bearer ",
                "Basic YW5uOnNlY3JldA==",
                secret,
                f"Token {secret}",
                f"Bearer\t{secret}",
            ),
            *(
                f"Bearer {secret[:-1]}",
                f"Bearer {secret}x",
                f"Bearer {secret},{secret}",
                f'Bearer "{secret}"',
            ),
            *(f"Bearer {secret} {secret}", f"Bearer {secret.swapcase()}", f"Bearer {of_another_database}"),
            f"Bearer {secret * 20_000}",
        ):
            refused(client.post(PATH, json=CHANGE, headers={"Authorization": header}))
        for two in ([secret, secret], [of_another_database, secret]):
            headers = [("Authorization", f"Bearer {each}") for each in two]
            refused(client.post(PATH, json=CHANGE, headers=headers))
        for path in ("/v1/groups", "/v1/groups/g", "/v1/reports/g"):
            refused(client.get(path, headers=bearer("sq_no")))
            # No host's name makes another path of it.
            response = client.get(path, headers={**bearer("sq_no"), "Host": "localhost:80/health?"})
            assert response.status_code == 400, response.text
        beat = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
        refused(client.post("/v1/share-group-heartbeat", json=beat, headers=bearer(of_another_database)))
    finally:
        Tokens(database).revoke(other.token_id)
    assert GroupConfigs.load(private_database, "g").delivery_count_limit == 5
    assert describe_group(private_database, "g").members == ()
    for header in (f"bearer {secret}", f"BEARER   {secret}  "):
        assert client.post(PATH, json=CHANGE, headers={"Authorization": header}).json()["error_code"] == 0
    # What probes and Prometheus ask is not asked as somebody.
    assert client.get("/health", headers=bearer("sq_no")).status_code == 200
    assert secret not in caplog.text


def test_a_token_ends_at_once(client: TestClient, private_database: Database) -> None:
    """By the database's clock, or when it is revoked: the next request is refused. A later token goes on."""
    tokens = Tokens(private_database)
    _, short = tokens.create("User:ann", timedelta(hours=1))
    kept, lasting = tokens.create("User:ann")

    def status(secret: str) -> int:
        response = client.get("/v1/groups", headers=bearer(secret))
        return int(response.status_code)

    def clock(to: str) -> None:
        with private_database.transaction() as connection:
            connection.execute(
                sa.text("select sharequeue.set_clock_offset(cast(:to as interval))"), {"to": to}
            )

    clock("50 minutes")
    assert (status(short), status(lasting)) == (200, 200)
    clock("1 hour")
    assert (status(short), status(lasting)) == (401, 200)
    assert [each.state for each in tokens.find("User:ann")] == ["expired", "in force"]
    assert [each.token_id for each in tokens.revoke(kept.token_id, dry_run=True)] == [kept.token_id]
    assert status(lasting) == 200
    (revoked,) = tokens.revoke(kept.token_id)
    assert (revoked.state, revoked.revoked_at is not None, status(lasting)) == ("revoked", True, 401)
    assert tokens.revoke(kept.token_id) == []
    assert [each.state for each in tokens.find()] == ["expired", "revoked"]


def test_a_token_that_is_revoked_while_its_body_comes_does_nothing(
    client: TestClient, private_database: Database
) -> None:
    """A request that began in time is not enough for a change."""
    token, secret = Tokens(private_database).create("User:ann")

    def slowly() -> Iterator[bytes]:
        yield json.dumps(CHANGE).encode()

    read = Call.body

    async def revoked_meanwhile(call: Call) -> bytes:
        found = await read(call)
        Tokens(private_database).revoke(token.token_id)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Call, "body", revoked_meanwhile)
        headers = {**bearer(secret), "Content-Type": "application/json"}
        refused(client.post(PATH, content=slowly(), headers=headers))
    assert GroupConfigs.load(private_database, "g").delivery_count_limit == 5


def test_the_secret_is_nowhere(private_database: Database) -> None:
    """Not in the tables, not in the audit log, nor is its hash there; two secrets are never the same."""
    tokens = Tokens(private_database)
    made = [tokens.create("User:ann", note="one") for _ in range(3)]
    tokens.revoke(principal="User:ann")
    assert len({secret for _, secret in made}) == 3
    assert all(re.fullmatch(r"sq_[A-Za-z0-9_-]{43}", secret) for _, secret in made)
    (held,) = private_database.rows(
        sa.text("select string_agg(cast(t as text), ' ') as found from sharequeue.service_tokens t")
    )
    (hashed,) = private_database.rows(
        sa.text("select array_agg(encode(secret_hash, 'hex')) as found from sharequeue.service_tokens")
    )
    rows = audit(private_database)
    assert [row["act"] for row in rows] == ["create_token"] * 3 + ["revoke_token"] * 3
    assert set(rows[0]["after"]) == {"token_id", "principal", "note", "expires_at", "scopes"}
    for token, secret in made:
        for text in (held["found"], str(rows), repr(token), str(tokens.find())):
            assert secret not in text
            assert secret.removeprefix("sq_") not in text
    assert not [each for each in hashed["found"] if each in str(rows)]


@pytest.mark.parametrize("principal", ["User:*", ANONYMOUS, "User:", "ann", "Group:ann", "", "User:a\nb"])
def test_a_token_needs_a_principal(principal: str, private_database: Database) -> None:
    """A token is for one principal, neither all nor none."""
    with pytest.raises(InvalidRequest):
        Tokens(private_database).create(principal)
    for lifetime in (timedelta(0), timedelta(days=-1), timedelta(days=40_000)):
        with pytest.raises(InvalidRequest):
            Tokens(private_database).create("User:ann", lifetime)
    assert Tokens(private_database).find() == []


def test_who_may_make_tokens(private_database: Database, settings: Settings, tmp_path: Path) -> None:
    """The service's role; a worker not, nor the service for a caller. A reader sees which there are, and no hash."""
    suffix = uuid.uuid4().hex[:8]
    names = RoleNames(*(f"{purpose}_{suffix}" for purpose in RoleNames._fields))
    migrate(private_database, roles=names)
    opened: dict[str, Database] = {}
    try:
        for purpose in ("service", "worker", "reader"):
            login = f"{purpose}_login_{suffix}"
            with private_database.transaction() as connection:
                connection.exec_driver_sql(
                    f"create role {login} login password 'secret' in role {getattr(names, purpose)}"
                )
            url = private_database.engine.url.set(username=login, password="secret")
            opened[purpose] = Database(url.render_as_string(hide_password=False))
        service, worker, reader = opened.values()
        _, secret = Tokens(service).create("User:ann", timedelta(days=90))
        changes: tuple[Callable[[Tokens], object], ...] = (
            lambda of: of.create("User:bob"),
            lambda of: of.revoke(principal="User:ann"),
        )
        assert [each.principal for each in Tokens(reader).find()] == ["User:ann"]
        for database in (worker, reader):
            for change in changes:
                with pytest.raises(ProgrammingError, match="permission denied"):
                    change(Tokens(database))
            for query in (
                "select * from sharequeue.service_tokens",
                "select sharequeue.principal_of_token('x')",
            ):
                with pytest.raises(ProgrammingError, match="permission denied"):
                    database.rows(sa.text(query))
        for change in changes:
            with (
                pytest.raises(ClusterAuthorizationFailed),
                on_behalf_of(service, "User:ann") as connection,
            ):
                change(Tokens(Joined(connection)))
        app = create_app(settings.replace(database_url=url_of(service)), coordinate=False)
        with TestClient(app, base_url="http://localhost") as client:
            body = {"group_ids": ["g"], "names": [LIMIT]}
            found = client.post("/v1/describe-configs", json=body, headers=bearer(secret))
            assert found.json()["groups"][0]["error_code"] == 0
    finally:
        for each in opened.values():
            each.close()


def test_clients_say_who_they_are(
    settings: Settings, private_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats of members and consumers; what is refused is an error that is not tried again."""
    tokens = Tokens(private_database)
    token, secret = tokens.create("User:ann")
    _, gone = tokens.create("User:bob", timedelta(seconds=1))
    tokens.revoke(principal="User:bob")
    Acls(private_database).add(Acl("User:ann", "READ", "ALLOW", "LITERAL", "g"))
    alter_group_configs(private_database, "g", {})

    with serving(settings.replace(database_url=url_of(private_database))) as url:
        with (
            Membership(ServiceAddress(url, gone), "g", ["t"]) as member,
            pytest.raises(SaslAuthenticationFailed),
        ):
            member.join(PATIENCE_S)
        beats, asked = (
            ServiceTransport(ServiceAddress(url, secret)),
            HeartbeatRequest("g", "m", 0, None, ("t",)),
        )
        assert beats(asked).error_code == 0
        malformed = ServiceTransport(ServiceAddress(url, f"{secret}\r\nHost: evil"))
        assert malformed(asked).error_code == SaslAuthenticationFailed.code
        config = {
            "group.id": "g",
            "bootstrap.servers": settings.bootstrap_servers,
            "sharequeue.home": str(tmp_path),
            "sharequeue.database.url": url_of(private_database),
            "sharequeue.service.url": url,
            "sharequeue.service.token": gone,
        }
        with ShareConsumer(config) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(KafkaException, match="revoked") as raised:
                consumer.poll(PATIENCE_S)
        assert raised.value.args[0].code() == KafkaError.SASL_AUTHENTICATION_FAILED
        assert gone not in str(raised.value)
        tokens.revoke(token.token_id)
        assert beats(HeartbeatRequest("g", "m", 1)).error_code == SaslAuthenticationFailed.code
        for each in (beats, malformed):
            each.close()
    monkeypatch.setenv("SHAREQUEUE_SERVICE_TOKEN", f" {secret}\n")
    loaded = Settings.load(tmp_path)
    assert loaded.service_token == secret
    assert secret not in repr(loaded)
    assert transports.PATH.startswith("/v1/")


def test_the_command(private_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token alone is on stdout; lists have none; revoking is a dry run first."""
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url_of(private_database))
    monkeypatch.setenv("SHAREQUEUE_HOME", str(tmp_path))

    def run(*words: str) -> Result:
        return CliRunner().invoke(command, ["tokens", *words])

    made = run("create", "--principal", "User:ann", "--note", "laptop")
    assert re.fullmatch(r"sq_[A-Za-z0-9_-]{43}\n", made.stdout)
    assert "User:ann, until" in made.stderr
    assert made.stdout.strip() not in made.stderr
    lasting = run("create", "--principal", "User:bob", "--expires", "never", "-o", "json")
    found = json.loads(lasting.stdout)
    assert (found["principal"], found["expires"], found["token"][:3]) == ("User:bob", None, "sq_")
    first, second = json.loads(run("list", "-o", "json").stdout)
    assert (first["expires"] - first["created"], first["note"]) == (90 * 86_400_000, "laptop")
    assert (second["id"], second["state"], second["expires"]) == (found["id"], "in force", None)
    listed = run("list", "--verbose").stdout
    assert made.stdout.strip() not in listed
    assert "User:bob" in listed
    assert run("revoke").exit_code == 2
    assert run("revoke", "--id", found["id"]).stdout.startswith("would revoke 1")
    assert run("revoke", "--id", found["id"], "--execute", "--yes").stdout.startswith("revoked 1")
    assert run("revoke", "--id", found["id"], "--execute", "--yes").stdout.startswith("revoked 0")
    for unknown in (("--principal", "User:an"), ("--id", str(uuid.uuid4()))):
        missing = run("revoke", *unknown, "--execute", "--yes")
        assert missing.exit_code == 1
        assert "There is no such token" in missing.output
    for wrong in (("--principal", "User:*"), ("--principal", "User:ann", "--expires", "PT0S")):
        assert isinstance(run("create", *wrong).exception, ShareError)
    assert run("create", "--principal", "User:ann", "--expires", "tomorrow").exit_code == 2
    assert [row["state"] for row in json.loads(run("list", "-o", "json").stdout)] == ["in force", "revoked"]


@pytest.mark.parametrize("scope", ["heartbeat", "describe", "metrics", "admin", None])
def test_a_token_of_a_scope_is_good_for_that_alone(
    client: TestClient, private_database: Database, scope: str | None
) -> None:
    """Every request needs one scope, whatever ACLs allow; the refusal names it. Without a scope all is open."""
    _, secret = Tokens(private_database).create("User:ann", scopes=[scope] if scope else [])
    beat = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    asked: list[tuple[str, str, str, dict[str, Any] | None]] = [
        ("heartbeat", "POST", "/v1/share-group-heartbeat", beat),
        ("describe", "GET", "/v1/groups", None),
        ("describe", "GET", "/v1/groups/g", None),
        ("describe", "GET", "/v1/reports/g", None),
        ("describe", "GET", "/", None),
        ("describe", "POST", "/v1/share-group-describe", {"group_ids": ["g"]}),
        ("describe", "POST", "/v1/describe-share-group-offsets", {"groups": []}),
        ("describe", "POST", "/v1/describe-configs", {"group_ids": ["g"]}),
        ("metrics", "GET", "/metrics", None),
        ("admin", "POST", PATH, CHANGE),
        ("admin", "POST", "/v1/alter-share-group-offsets", {"group_id": "g", "topics": []}),
        ("admin", "POST", "/v1/delete-share-group-offsets", {"group_id": "g", "topics": []}),
        ("admin", "POST", "/v1/delete-groups", {"groups_names": []}),
    ]
    for needed, method, path, body in asked:
        answer = client.request(method, path, json=body, headers=bearer(secret))
        if scope in (None, needed):
            assert answer.status_code == 200, (path, answer.text)
        else:
            assert answer.status_code == 403, path
            assert f"has only the scopes: {scope}" in answer.text.replace("&#x27;", "'")
            assert f"needs: {needed}" in answer.text


def test_tokens_of_scopes_by_command(
    private_database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are made and listed with their scopes; one that is none is refused. A member with a token of another scope
    is told so, and does not ask again."""
    url = url_of(private_database)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    words = [
        "tokens",
        "create",
        "--principal",
        "User:prometheus",
        "--scope",
        "metrics",
        "--scope",
        "describe",
    ]
    made = CliRunner().invoke(command, words)
    assert made.exit_code == 0, made.output
    assert "only for describe, metrics" in made.stderr
    assert CliRunner().invoke(command, [*words, "--scope", "root"]).exit_code == 2
    rows = json.loads(CliRunner().invoke(command, ["tokens", "list", "-o", "json"]).stdout)
    assert [row["scope"] for row in rows] == ["describe, metrics"], rows
    for wrong in ([], ["root"], ["admin", None]):
        with pytest.raises(InvalidRequest, match="some of heartbeat, describe, metrics, admin"):
            private_database.rows(
                sa.text(
                    "select * from sharequeue.create_token('User:a', cast(:h as bytea), null, null,"
                    " cast(:s as text[]))"
                ),
                h=bytes(32),
                s=wrong,
            )
    with serving(settings.replace(database_url=url)) as address:
        member = Membership(ServiceAddress(address, made.stdout.strip()), "g", ["t"])
        with member, pytest.raises(ClusterAuthorizationFailed, match="needs: heartbeat"):
            member.join(PATIENCE_S)


def test_who_may_not_is_told_so_before_what_is_wrong(client: TestClient, private_database: Database) -> None:
    """As on a broker: ACLs of the group and of the topics come before the form of a heartbeat. What is no heartbeat
    at all is told that."""
    path = "/v1/share-group-heartbeat"
    Acls(private_database).add(Acl("User:bob", "READ", "ALLOW", "LITERAL", "g"))
    Acls(private_database).add(Acl("User:bob", "DESCRIBE", "ALLOW", "LITERAL", "closed", "TOPIC"))
    wrong: list[dict[str, Any]] = [
        {"member_id": ""},
        {"member_id": "m" * 37},
        {"member_epoch": -5},
        {"subscribed_topic_names": []},
        {"subscribed_topic_names": ["no such name"]},
        {"rack_id": ""},
    ]
    right = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    for each in wrong:
        assert client.post(path, json={**right, **each}).json()["error_code"] == 30, each
        open_to_all = {**right, **each, "group_id": "another"}
        assert client.post(path, json=open_to_all).json()["error_code"] in (17, 42), each
        closed = {**open_to_all, "member_epoch": -5, "subscribed_topic_names": ["closed"]}
        assert client.post(path, json=closed).json()["error_code"] == 29, each
    assert client.post(path, json={**right, "group_id": ""}).json()["error_code"] == 42
    assert client.post(path, json={**right, "topics": []}).json()["error_code"] == 42
    assert (
        client.post(path, content=b"{", headers={"Content-Type": "application/json"}).json()["error_code"]
        == 42
    )


def test_prometheus_sees_that_the_database_is_away(settings: Settings, private_database: Database) -> None:
    """A token that was accepted before is, for the figures of the process; any other is not. A token that was revoked
    is not accepted any more."""
    here = settings.replace(database_url=url_of(private_database))
    secrets = [Tokens(private_database).create("User:prometheus", scopes=["metrics"])[1] for _ in range(3)]
    used, revoked, new = ({"Authorization": f"Bearer {each}"} for each in secrets)
    app = create_app(here, coordinate=False, require_token=True)
    service = app.state.service
    with TestClient(app, base_url="http://localhost") as client, Database(NOWHERE) as away:
        for headers in (used, revoked):
            assert "sharequeue_database_up 1.0" in client.get("/metrics", headers=headers).text
        Tokens(private_database).revoke(Tokens(private_database).find()[1].token_id)
        assert client.get("/metrics", headers=revoked).status_code == 401
        service.admission._databases = {True: away, False: away}
        service.metrics._reader = Reader(away)
        scraped = client.get("/metrics", headers=used)
        assert scraped.status_code == 200
        assert "sharequeue_database_up 0.0" in scraped.text
        for headers in (revoked, new, {}):
            assert client.get("/metrics", headers=headers).status_code in (401, 503)
        assert client.get("/v1/groups", headers=used).status_code == 503
