"""A broker that lets nobody in without TLS and a proof: SCRAM, PLAIN, client certificates, tokens of OAuth."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import httpx
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from sharequeue import AcknowledgeType, ShareConsumer
from sharequeue.database import Database
from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.deadletters.topic import create_dead_letter_topic
from sharequeue.domain.errors import SaslAuthenticationFailed
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local import ports
from sharequeue.spark.reading.frame import leased_records
from tests.deep.main_path import invoke, walk, walk_to_topic
from tests.fixtures.stack import jars_folder
from tests.integration.consumer.share_group import Work, poll_some, wait_until, work_on
from tests.leases import lease_of
from tests.servers.certificates import Authority, TokenKey
from tests.servers.own_brokers import OwnBroker, own_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "never-to-be-shown"
WRONG = "wrong-and-never-to-be-shown"
_COMMON = "org.apache.kafka.common.security"
_PROPERTIES = """
ssl.keystore.type=PEM
ssl.keystore.location={server}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.mutual.ssl.client.auth=required
listener.name.words.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
listener.name.words.scram-sha-512.sasl.jaas.config={common}.scram.ScramLoginModule required;
listener.name.words.plain.sasl.jaas.config={common}.plain.PlainLoginModule required user_jobs="{secret}";
listener.name.words.scram-sha-512.connections.max.reauth.ms=3000
listener.name.tokens.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.tokens.oauthbearer.sasl.jaas.config={common}.oauthbearer.OAuthBearerLoginModule required;
listener.name.tokens.oauthbearer.sasl.server.callback.handler.class={common}.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.tokens.oauthbearer.connections.max.reauth.ms=3600000
sasl.oauthbearer.jwks.endpoint.url=file://{jwks}
sasl.oauthbearer.expected.audience=kafka
sasl.oauthbearer.expected.issuer=tests
"""


@dataclass
class Issuer:
    """The endpoint where clients get tokens."""

    key: TokenKey = field(default_factory=TokenKey)
    issued: int = 0
    url: str = ""

    def serve(self) -> ThreadingHTTPServer:
        """Begin to answer."""
        issuer = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                expected = "Basic " + base64.b64encode(f"jobs:{SECRET}".encode()).decode()
                right = self.headers.get("Authorization") == expected
                token = {
                    "access_token": issuer.key.token("jobs", 20),
                    "expires_in": 20,
                    "token_type": "Bearer",
                }
                body = json.dumps(token if right else {"error": "invalid_client"}).encode()
                issuer.issued += right
                self.send_response(200 if right else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{server.server_port}/token"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


@dataclass
class Secured:
    """The broker, and what is needed to be let in."""

    broker: OwnBroker
    authority: Authority
    folder: Path
    issuer: Issuer

    def set_password(self, user: str, password: str) -> None:
        """As the broker's operator does it, on the listener without security."""
        admin = AdminClient({"bootstrap.servers": self.broker.address()})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(20)

    def variables(self, kind: str) -> dict[str, str]:
        """The variables, without their prefix, of who is let in that way."""
        trust = {"SSL_CA_LOCATION": str(self.authority.certificate)}
        if kind == "mutual":
            pair = self.authority.signed("client")
            return trust | {
                "SECURITY_PROTOCOL": "SSL",
                "SSL_CERTIFICATE_LOCATION": str(pair.certificate),
                "SSL_KEY_LOCATION": str(pair.key),
            }
        if kind == "tokens":
            return trust | {
                "SECURITY_PROTOCOL": "SASL_SSL",
                "SASL_MECHANISM": "OAUTHBEARER",
                "SASL_OAUTHBEARER_METHOD": "oidc",
                "SASL_OAUTHBEARER_CLIENT_ID": "jobs",
                "SASL_OAUTHBEARER_CLIENT_SECRET": SECRET,
                "SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": self.issuer.url,
            }
        return trust | {
            "SECURITY_PROTOCOL": "SASL_SSL",
            "SASL_MECHANISM": kind,
            "SASL_USERNAME": "jobs",
            "SASL_PASSWORD": SECRET,
        }

    def address(self, kind: str) -> str:
        """Where the listener of that way is."""
        return self.broker.address({"mutual": "MUTUAL", "tokens": "TOKENS"}.get(kind, "WORDS"))


KINDS = ("SCRAM-SHA-512", "PLAIN", "mutual", "tokens")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Give a broker with a listener for each way in."""
    folder = tmp_path_factory.mktemp("secured")
    authority, issuer = Authority(folder), Issuer()
    tokens = issuer.serve()
    jwks = folder / "jwks.json"
    jwks.write_text(issuer.key.jwks())
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    properties = _PROPERTIES.format(
        server=authority.signed("server").both,
        authority=authority.certificate,
        common=_COMMON,
        secret=SECRET,
        jwks=jwks,
    )
    listeners = {"WORDS": "SASL_SSL", "MUTUAL": "SSL", "TOKENS": "SASL_SSL"}
    options = (f"{allowed}.urls=file://{jwks}", f"{allowed}.files={jwks}")
    with own_broker(folder / "broker", jars_folder() / "broker", listeners, properties, options) as broker:
        found = Secured(broker, authority, folder, issuer)
        found.set_password("jobs", SECRET)
        yield found
    tokens.shutdown()


@pytest.fixture
def place(
    secured: Secured,
    settings: Settings,
    private_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Place:
    """Give what sets the environment of somebody who comes in that way."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    return Place(secured, monkeypatch)


@dataclass
class Place:
    """Sets the environment."""

    secured: Secured
    environment: pytest.MonkeyPatch

    def __call__(self, kind: str, **changed: str | None) -> Settings:
        """Set it for a way in, with some variables changed, and return what it says."""
        self.environment.setenv("SHAREQUEUE_BOOTSTRAP_SERVERS", self.secured.address(kind))
        for name, value in {**self.secured.variables(kind), **changed}.items():
            if value is None:
                self.environment.delenv(f"SHAREQUEUE_KAFKA_{name}", raising=False)
            else:
                self.environment.setenv(f"SHAREQUEUE_KAFKA_{name}", value)
        return Settings.load()


@pytest.mark.parametrize("kind", KINDS)
def test_the_main_path(place: Place, kind: str, private_database: Database, spark: SparkSession) -> None:
    """Service, job, dead letters, redrive, consumer and resets, with librdkafka and with Spark's Java client."""
    walk(place(kind), private_database, spark)


@pytest.mark.parametrize("kind", KINDS)
def test_results_to_a_topic(place: Place, kind: str, private_database: Database, spark: SparkSession) -> None:
    """The executors' producers log in as all other clients do: each accepted row is there once."""
    walk_to_topic(place(kind), private_database, spark)


@pytest.mark.parametrize("kind", KINDS)
def test_reading_by_offset_logs_in_as_a_scan_does(place: Place, kind: str, spark: SparkSession) -> None:
    """The same way, where Spark's tasks have clients of librdkafka instead of the connector."""
    settings, topic = place(kind), f"topic-{uuid4().hex[:8]}"
    with Topics(settings) as topics:
        topics.create(topic, 1)
    producer = Producer(client_config(settings))
    for number in range(10):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(30) == 0
    lease = lease_of(1, topic, 0, (1, OffsetSet.of((0, 10))))
    scanned, read = (
        [tuple(row) for row in leased_records(spark, settings, [lease], by_offset=by_offset).collect()]
        for by_offset in (False, True)
    )
    assert scanned == read
    assert len(read) == 10


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("SCRAM-SHA-512", {"SASL_PASSWORD": WRONG}, "Authentication failed"),
        ("PLAIN", {"SASL_PASSWORD": WRONG}, "Authentication failed"),
        ("PLAIN", {"SASL_MECHANISM": "SCRAM-SHA-256"}, "SCRAM-SHA-256"),
        ("tokens", {"SASL_OAUTHBEARER_CLIENT_SECRET": WRONG}, "OAUTHBEARER"),
        ("mutual", {"SSL_CERTIFICATE_LOCATION": None, "SSL_KEY_LOCATION": None}, "TLS"),
        ("mutual", {"SSL_CA_LOCATION": "another"}, "TLS"),
        ("mutual", {"SSL_CA_LOCATION": "/nowhere.pem"}, "nowhere.pem"),
        ("SCRAM-SHA-512", {"SECURITY_PROTOCOL": "PLAINTEXT"}, "does not answer"),
    ],
    ids=str,
)
def test_a_refused_login_is_named_in_seconds(
    place: Place,
    kind: str,
    changed: dict[str, str | None],
    said: str,
    private_database: Database,
    tmp_path: Path,
) -> None:
    """The doctor, a command and a question name the reason, and show no secret; nothing hangs."""
    if changed.get("SSL_CA_LOCATION") == "another":
        changed = {"SSL_CA_LOCATION": str(Authority(tmp_path, "another").certificate)}
    settings = place(kind, **changed)
    alter_group_configs(private_database, "g", {"share.auto.offset.reset": "earliest"})
    for words in (("doctor",), ("offsets", "reset", "--group", "g", "--topic", "t", "--to-latest")):
        began = time.monotonic()
        result = invoke(*words)
        assert time.monotonic() - began < 15, words
        assert result.exit_code != 0
        text = result.output + repr(result.exception)
        assert said in text, text
        assert SECRET not in text
        assert WRONG not in text
    if "Authentication" in said:
        began = time.monotonic()
        with Topics(settings) as topics, pytest.raises(SaslAuthenticationFailed, match=said):
            topics.cluster_id()
        assert time.monotonic() - began < 6


@contextmanager
def serving() -> Iterator[str]:
    """Have `sharequeue serve` run as the environment says; give its address."""
    port = next(port for port in random.sample(range(10_000, 20_000), 500) if ports.is_free(port))
    words = [sys.executable, "-m", "sharequeue.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: ports.accepts(port) and not degraded(url), 60)
        yield url
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(30)


def degraded(url: str) -> bool:
    """Whether the service says that it cannot do all of its work."""
    answer = httpx.get(f"{url}/ready", trust_env=False, timeout=20)
    return answer.status_code != 200 or bool(answer.json().get("degraded"))


@pytest.mark.parametrize("first", ["the broker", "the file"])
def test_a_password_changes_while_all_goes_on(
    place: Place, first: str, private_database: Database, tmp_path: Path, secured: Secured
) -> None:
    """Service and consumer log in with what the file has, whichever was changed first; connections end after three
    seconds here, so that each of them has to."""
    user, file = f"user-{uuid4().hex[:6]}", tmp_path / "password"
    secured.set_password(user, "old")
    file.write_text("old\n")
    settings = place("SCRAM-SHA-512", SASL_USERNAME=user, SASL_PASSWORD=None, SASL_PASSWORD_FILE=str(file))
    plain = settings.replace(kafka={}, bootstrap_servers=secured.broker.address())
    work = Work(plain, private_database, f"group-{user}")
    topic = f"topic-{user}"
    letters = f"dlq.{topic}"
    work.configure(share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name=letters)
    with Topics(plain) as topics:
        topics.create(topic, 1)
        create_dead_letter_topic(topics, letters, 1)
    config = {"group.id": work.group, "share.acknowledgement.mode": "explicit"}
    with serving() as url, ShareConsumer(config) as consumer:
        consumer.subscribe([topic])

        def taken(kind: AcknowledgeType) -> None:
            work.produce(topic, 1)
            for message in poll_some(consumer, 1, 60):
                consumer.acknowledge(message, kind)
            assert set(consumer.commit_sync().values()) == {None}

        taken(AcknowledgeType.ACCEPT)
        if first == "the broker":
            secured.set_password(user, "new")
            wait_until(lambda: degraded(url), 60)
            file.write_text("new\n")
        else:
            file.write_text("new\n")
            wait_until(lambda: degraded(url), 60)
            secured.set_password(user, "new")
        taken(AcknowledgeType.REJECT)
        wait_until(lambda: not degraded(url), 60)
        # The service writes it, with a producer of its own.
        wait_until(lambda: len(list(read_dead_letters(plain, letters))) == 1, 60)


def test_poll_raises_a_rejected_login(place: Place, private_database: Database) -> None:
    """A poll raises, instead of waiting for ever; with the right password, given by the program, it goes on."""
    settings = place("SCRAM-SHA-512", SASL_PASSWORD=WRONG)
    plain = settings.replace(kafka={}, bootstrap_servers=place.secured.broker.address())
    topic = f"topic-{uuid4().hex[:8]}"
    with Topics(plain) as topics, work_on(plain, private_database, f"group-{topic}") as work:
        topics.create(topic, 1)
        work.produce(topic, 1)
        with ShareConsumer({"group.id": work.group}) as consumer:
            consumer.subscribe([topic])
            began = time.monotonic()
            with pytest.raises(KafkaException, match="refuses the login of this client") as raised:
                poll_some(consumer)
            assert time.monotonic() - began < 15
            assert WRONG not in str(raised.value)
            consumer.set_sasl_credentials("jobs", SECRET)
            assert len(poll_some(consumer)) == 1
            consumer.commit_sync()


def test_a_callback_for_tokens_serves_all_clients(place: Place, private_database: Database) -> None:
    """A consumer's `oauth_cb` gives tokens to all its clients: the one that reads and the one that asks."""
    settings = place("tokens")
    plain = settings.replace(kafka={}, bootstrap_servers=place.secured.broker.address())
    place("tokens", **dict.fromkeys(name for name in place.secured.variables("tokens") if "BEARER_" in name))
    asked: list[str] = []

    def token(config: str) -> tuple[str, float]:
        asked.append(config)
        return place.secured.issuer.key.token("jobs", 60), time.time() + 60

    topic = f"topic-{uuid4().hex[:8]}"
    with Topics(plain) as topics, work_on(plain, private_database, f"group-{topic}") as work:
        topics.create(topic, 1)
        work.produce(topic, 1)
        with ShareConsumer({"group.id": work.group, "oauth_cb": token}) as consumer:
            consumer.subscribe([topic])
            assert len(poll_some(consumer)) == 1
            consumer.commit_sync()
    assert len(asked) >= 2
