"""Where things are: environment over stack file over default."""

from __future__ import annotations

import json
import pickle
import pprint
import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from sharequeue.database.pool import connection_defaults
from sharequeue.domain.settings import SettingInvalid, SettingMissing, Settings, normalise_database_url
from sharequeue.kafka.clients import (
    LIBRDKAFKA,
    client_config,
    credentials,
    logged_in,
    portable_config,
    spark_options,
)
from sharequeue.spark.sinks.postgres.tables import connection_of
from tests.servers.certificates import Authority

STACK = {
    "database_url": "postgresql+psycopg2://u:p@127.0.0.1:1/sharequeue",
    "bootstrap_servers": "127.0.0.1:2",
    "service_url": "http://127.0.0.1:3",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "stack.json").write_text(json.dumps(STACK))
    return tmp_path


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_a_bare_postgres_url_names_psycopg2(scheme: str) -> None:
    """SQLAlchemy 2.1 would take psycopg 3 for a bare one."""
    assert normalise_database_url(f"{scheme}://u@h/d") == "postgresql+psycopg2://u@h/d"


def test_a_url_with_several_hosts_is_one_that_sqlalchemy_reads() -> None:
    """libpq's form, as of a primary with a standby: both hosts reach the driver, and what else the URL says."""
    url = normalise_database_url("postgresql://u:p@h1:5432,h2:5433/d?target_session_attrs=read-write")
    wanted = {"user": "u", "password": "p", "dbname": "d", "target_session_attrs": "read-write"}
    assert connection_of(url) == {**connection_defaults(url), **wanted, "host": "h1,h2", "port": "5432,5433"}
    other = Settings({"database_url": "postgresql://u@h1,h2/d"}).dagster_url
    assert other == "postgresql+psycopg2://u@/dagster?host=h1,h2"


@pytest.mark.parametrize(
    ("place", "host", "port"),
    [
        ("u@[::1]:5432/d", "::1", 5432),
        ("u@[::1]:5432,h2:5433/d", "::1,h2", "5432,5433"),
        ("u@h1:5432,[fe80::1]/d", "h1,fe80::1", "5432,"),
        ("u@/d?host=[::1]:5432&host=h2:1", "::1,h2", "5432,1"),
        ("u@/d?host=::1&port=5433", "::1", "5433"),
        ("u@%2Frun%2Fpostgresql/d", "/run/postgresql", None),
        ("u@%2Frun%2Fpostgresql:5433/d", "/run/postgresql", "5433"),
        ("u@/d?host=/run/postgresql", "/run/postgresql", None),
        ("u@/d?host=/run/postgresql:5433", "/run/postgresql", "5433"),
        ("u@/d?host=/run/postgresql&port=5433", "/run/postgresql", "5433"),
        ("u@/d?host=/a:1&host=/b:2", "/a,/b", "1,2"),
    ],
)
def test_ipv6_and_sockets_reach_the_driver(place: str, host: str, port: str | int | None) -> None:
    """Alone or among several hosts, in libpq's form or SQLAlchemy's; a second time changes nothing."""
    url = normalise_database_url(f"postgresql://{place}")
    found = connection_of(url)
    assert (found["host"], found.get("port"), found["user"], found["dbname"]) == (host, port, "u", "d")
    assert normalise_database_url(url) == url


def test_environment_wins_over_stack_file_and_that_over_default(
    home: Path, no_environment: pytest.MonkeyPatch
) -> None:
    """The order of the contract, seen on one setting of each kind."""
    no_environment.setenv("SHAREQUEUE_BOOTSTRAP_SERVERS", "elsewhere:9092")
    settings = Settings.load(home)
    assert settings.bootstrap_servers == "elsewhere:9092"
    assert settings.database_url == STACK["database_url"]
    assert settings.dagster_url == "postgresql+psycopg2://u:p@127.0.0.1:1/dagster"
    assert (settings.spark_master, settings.jars, settings.output) == (
        "local[*]",
        home / "jars",
        str(home / "output"),
    )


def test_another_database_takes_its_own_dagster_database_with_it(
    home: Path, no_environment: pytest.MonkeyPatch
) -> None:
    """A database named by the environment is not paired with the embedded stack's Dagster storage."""
    (home / "stack.json").write_text(
        json.dumps({**STACK, "dagster_url": "postgresql+psycopg2://u:p@127.0.0.1:1/dagster"})
    )
    no_environment.setenv("SHAREQUEUE_DATABASE_URL", "postgres://me@db/queue")
    assert Settings.load(home).dagster_url == "postgresql+psycopg2://me@db/dagster"


def test_home_from_the_environment_is_absolute(tmp_path: Path, no_environment: pytest.MonkeyPatch) -> None:
    """A relative home counts from the working directory at the time of loading."""
    no_environment.chdir(tmp_path)
    assert Settings.load().home == tmp_path / ".sharequeue"
    no_environment.setenv("SHAREQUEUE_HOME", "data")
    assert Settings.load().home == tmp_path / "data"


def test_an_output_that_is_a_uri_stays_one(tmp_path: Path, no_environment: pytest.MonkeyPatch) -> None:
    """A path is made absolute; small files of this process's own have a folder in any case."""
    no_environment.chdir(tmp_path)
    for given in ("s3a://bucket/flights", "hdfs://name:8020/flights/", "file:///srv/flights"):
        no_environment.setenv("SHAREQUEUE_OUTPUT", given)
        settings = pickle.loads(pickle.dumps(Settings.load()))  # noqa: S301 - our own bytes
        assert (settings.output, settings.output_shared) == (given.rstrip("/"), False)
        assert settings.replace(home=tmp_path).local_output == tmp_path / "output"
    no_environment.setenv("SHAREQUEUE_OUTPUT", "flights")
    no_environment.setenv("SHAREQUEUE_OUTPUT_SHARED", "true")
    settings = Settings.load().replace(spark_master="spark://m:7077")
    assert (settings.output, settings.output_shared) == (str(tmp_path / "flights"), True)
    assert settings.local_output == tmp_path / "flights"


def test_a_missing_address_says_what_to_set(tmp_path: Path, no_environment: pytest.MonkeyPatch) -> None:
    """Asking for an address nobody gave names the variable and the command; loading alone does not fail."""
    settings = Settings.load(tmp_path)
    assert not settings.knows("database_url")
    with pytest.raises(SettingMissing, match=r"SHAREQUEUE_DATABASE_URL.*sharequeue up"):
        _ = settings.database_url


@pytest.mark.parametrize(
    "servers",
    ["h:99999", "h:65536", "h:0", "h:", "h:x", "h:-1", "h:9092,SSL://g:99999", "[::1]:70000", "h:٣"],
)
def test_a_port_that_cannot_be_is_refused(servers: str) -> None:
    """librdkafka makes another port of it, at which nobody ever answers."""
    with pytest.raises(
        SettingInvalid, match=r"the port of '[^,]*' is '.*': expected a number from 1 to 65535"
    ):
        Settings({"bootstrap_servers": servers})


def test_a_master_that_spark_has_not_is_refused() -> None:
    """Spark would show the stack of its JVM."""
    for master in ("loca[2]", "local[x]", "local[]", "h:7077", "yarnn"):
        with pytest.raises(SettingInvalid, match="expected local"):
            Settings({"spark_master": master})
    for master in (
        "local",
        "local[2]",
        "local[*,4]",
        "local-cluster[2,1,1024]",
        "yarn",
        "k8s://https://h:6443",
    ):
        assert Settings({"spark_master": master}).spark_master == master


@pytest.mark.parametrize(
    "servers",
    ["h:1", "h:65535, g:9092", "SASL_SSL://h:9093", "h", "", "h:1,", "[::1]:9092", "[::1]", "fe80::1:2"],
)
def test_an_address_that_librdkafka_accepts_is_accepted(servers: str) -> None:
    """As it is."""
    settings = Settings({"bootstrap_servers": servers})
    assert settings.knows("bootstrap_servers") == bool(servers)
    assert not servers or settings.bootstrap_servers == servers


def test_a_broken_stack_file_is_named(tmp_path: Path, no_environment: pytest.MonkeyPatch) -> None:
    """Half a stack file is an error with its path, not a stack without addresses."""
    (tmp_path / "stack.json").write_text("{")
    with pytest.raises(SettingMissing, match=r"stack\.json"):
        Settings.load(tmp_path)


def test_settings_are_immutable_replaceable_and_picklable(
    home: Path, no_environment: pytest.MonkeyPatch
) -> None:
    """They travel to Spark and Dagster processes unchanged, and hide the password when printed."""
    settings = Settings.load(home).replace(bootstrap_servers="b:1", spark_master="spark://m:7077")
    copy = pickle.loads(pickle.dumps(settings))  # noqa: S301 - our own bytes
    assert (copy.bootstrap_servers, copy.spark_master, copy.home) == ("b:1", "spark://m:7077", home)
    assert copy.database_url == STACK["database_url"]
    assert ":p@" not in repr(copy)
    with pytest.raises(AttributeError):
        copy.home = home


def test_mappings_with_secrets_show_their_names_alone(home: Path, no_environment: pytest.MonkeyPatch) -> None:
    """However they are printed, and also when they come from `replace`; as mappings they are what they were."""
    secrets = {"sasl.password": "abc-secret", "ssl.key.password": "abc-secret"}
    no_environment.setenv("SHAREQUEUE_REGISTRY_BASIC_AUTH_USER_INFO", "u:abc-secret")
    settings = Settings.load(home).replace(kafka=secrets)
    for each in (settings.kafka, settings.registry, settings, settings.replace(home=home).kafka):
        assert "abc-secret" not in f"{each} {each!r} {pprint.pformat(each)} {[each]}"
    assert repr(settings.kafka) == "{'sasl.password': '***', 'ssl.key.password': '***'}"
    assert settings.kafka == secrets
    assert {**settings.kafka, "a": "b"} == {**secrets, "a": "b"}
    assert pickle.loads(pickle.dumps(settings)).kafka == secrets  # noqa: S301


def test_kafka_security_reaches_both_client_families(home: Path, no_environment: pytest.MonkeyPatch) -> None:
    """librdkafka gets the names as they are, and for other machines a certificate as text, as Java does."""
    authority = home / "ca.pem"
    authority.write_text("an authority")
    for name, value in {
        "SECURITY_PROTOCOL": "SASL_SSL",
        "SASL_MECHANISM": "SCRAM-SHA-512",
        "SASL_USERNAME": "me",
        "SASL_PASSWORD": 'se"cret',
        "SSL_CA_LOCATION": str(authority),
    }.items():
        no_environment.setenv(f"SHAREQUEUE_KAFKA_{name}", value)
    settings = Settings.load(home)
    assert client_config(settings, group_id="g") == {
        "bootstrap.servers": "127.0.0.1:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": 'se"cret',
        "ssl.ca.location": str(authority),
        "group.id": "g",
        "logger": LIBRDKAFKA,
    }
    assert portable_config(settings) == {
        "bootstrap.servers": "127.0.0.1:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": 'se"cret',
        "ssl.ca.pem": "an authority",
    }
    assert spark_options(settings) == {
        "kafka.bootstrap.servers": "127.0.0.1:2",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="se\\"cret";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "an authority",
    }


def test_a_security_setting_java_does_not_have_is_refused(
    home: Path, no_environment: pytest.MonkeyPatch
) -> None:
    """Dropping it silently could turn a check off on one side only."""
    no_environment.setenv("SHAREQUEUE_KAFKA_ENABLE_SSL_CERTIFICATE_VERIFICATION", "false")
    with pytest.raises(SettingMissing, match="SHAREQUEUE_KAFKA_ENABLE_SSL_CERTIFICATE_VERIFICATION"):
        spark_options(Settings.load(home))


@pytest.mark.parametrize("name", ["AUTO_OFFSET_RESET", "ISOLATION_LEVEL", "CHECK_CRCS", "ENABLE_IDEMPOTENCE"])
def test_a_setting_that_changes_what_is_read_or_written_is_refused(
    name: str, home: Path, no_environment: pytest.MonkeyPatch
) -> None:
    """With `auto.offset.reset=latest`, records would count as gaps; of every client."""
    set_kafka(no_environment, **{name: "true"})
    settings = Settings.load(home)
    for config in (client_config, spark_options, portable_config):
        with pytest.raises(SettingMissing, match=f"SHAREQUEUE_KAFKA_{name} is not supported"):
            config(settings)


def set_kafka(patch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        patch.setenv(f"SHAREQUEUE_KAFKA_{name}", value)


def test_a_password_is_read_from_its_file_each_time(home: Path, no_environment: pytest.MonkeyPatch) -> None:
    """Whoever makes a client gets what is there now; a file that is not there is named, its variable too."""
    file = home / "password"
    set_kafka(no_environment, SECURITY_PROTOCOL="SASL_SSL", SASL_MECHANISM="PLAIN", SASL_USERNAME="me")
    set_kafka(no_environment, SASL_PASSWORD_FILE=str(file))
    settings = Settings.load(home)
    with pytest.raises(SettingMissing, match=r"SHAREQUEUE_KAFKA_SASL_PASSWORD_FILE=.* cannot be read"):
        client_config(settings)
    before = credentials(settings)
    for password in ("old", "new one "):
        file.write_text(password + "\n")
        config = client_config(settings)
        assert config["sasl.password"] == password
        assert "sasl.password.file" not in config
        assert f'password="{password}"' in spark_options(settings)["kafka.sasl.jaas.config"]
        before, now = credentials(settings), before
        assert before != now
    other = logged_in(settings, "you", "yours")
    assert (client_config(other)["sasl.username"], client_config(other)["sasl.password"]) == ("you", "yours")


def test_tokens_come_from_the_same_place_in_java(home: Path, no_environment: pytest.MonkeyPatch) -> None:
    """librdkafka's method `oidc` is Java's callback handler, with client and secret in the JAAS line."""
    set_kafka(
        no_environment,
        SECURITY_PROTOCOL="SASL_SSL",
        SASL_MECHANISM="OAUTHBEARER",
        SASL_OAUTHBEARER_METHOD="oidc",
        SASL_OAUTHBEARER_CLIENT_ID="jobs",
        SASL_OAUTHBEARER_CLIENT_SECRET="s\\1",
        SASL_OAUTHBEARER_SCOPE="kafka",
        SASL_OAUTHBEARER_EXTENSIONS="logicalCluster=lkc-1",
        SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL="https://id.example/token",
    )
    bearer = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
    assert spark_options(Settings.load(home)) == {
        "kafka.bootstrap.servers": "127.0.0.1:2",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": f"{bearer}CallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
        "kafka.sasl.jaas.config": f'{bearer}Module required clientId="jobs" clientSecret="s\\\\1" scope="kafka" '
        'extension_logicalCluster="lkc-1";',
    }


def test_what_java_alone_is_told_does_not_reach_librdkafka(
    home: Path, no_environment: pytest.MonkeyPatch
) -> None:
    """It refuses a JAAS line; the line wins over the one that would be made of user and password."""
    set_kafka(
        no_environment, SASL_MECHANISM="PLAIN", SASL_USERNAME="me", SASL_JAAS_CONFIG="a.Module required;"
    )
    set_kafka(no_environment, SECURITY_PROTOCOL="SASL_PLAINTEXT")
    settings = Settings.load(home)
    assert "sasl.jaas.config" not in client_config(settings)
    assert spark_options(settings)["kafka.sasl.jaas.config"] == "a.Module required;"


def test_a_certificate_that_is_not_in_pem_is_refused(home: Path, no_environment: pytest.MonkeyPatch) -> None:
    """One in DER is not text."""
    (home / "cert").write_bytes(b"0\x82\x03\xff")
    set_kafka(no_environment, SECURITY_PROTOCOL="SSL", SSL_CA_LOCATION=str(home / "cert"))
    with pytest.raises(SettingMissing, match=r"_SSL_CA_LOCATION=.*cert, line 1: byte 0x82 .*: expected PEM"):
        spark_options(Settings.load(home))


def test_keys_that_java_cannot_read_are_refused(home: Path, no_environment: pytest.MonkeyPatch) -> None:
    """One that is not in PKCS#8 would end in `No matching entries found`; a key store is a file of each executor."""
    for name in ("cert", "key"):
        (home / name).write_text(f"-----BEGIN RSA PRIVATE KEY-----\n{name}")
    set_kafka(no_environment, SECURITY_PROTOCOL="SSL")
    set_kafka(no_environment, SSL_CERTIFICATE_LOCATION=str(home / "cert"), SSL_KEY_LOCATION=str(home / "key"))
    with pytest.raises(SettingMissing, match="openssl pkcs8 -topk8"):
        spark_options(Settings.load(home))
    (home / "key").write_text("-----BEGIN PRIVATE KEY-----")
    options = spark_options(Settings.load(home))
    assert (options["kafka.ssl.keystore.type"], options["kafka.ssl.keystore.key"]) == (
        "PEM",
        "-----BEGIN PRIVATE KEY-----",
    )
    for name in ("SSL_CERTIFICATE_LOCATION", "SSL_KEY_LOCATION"):
        no_environment.delenv(f"SHAREQUEUE_KAFKA_{name}")
    set_kafka(no_environment, SSL_KEYSTORE_LOCATION="/me.p12", SSL_KEYSTORE_PASSWORD="x")
    options = spark_options(Settings.load(home))
    assert (options["kafka.ssl.keystore.type"], options["kafka.ssl.keystore.location"]) == (
        "PKCS12",
        "/me.p12",
    )


def test_the_service_token_is_of_the_environment_or_a_file_and_not_shown(
    home: Path, no_environment: pytest.MonkeyPatch
) -> None:
    """The stack file, which `up` writes, has none; a copy of the settings still has it."""
    secret = f"sq_{'x' * 43}"
    (home / "stack.json").write_text(json.dumps({**STACK, "service_token": secret}))
    assert Settings.load(home).service_token is None
    no_environment.setenv("SHAREQUEUE_SERVICE_TOKEN", f"{secret}\n")
    settings = Settings.load(home).replace(spark_master="local[1]")
    assert settings.service_token == secret
    assert "xxx" not in f"{settings!r} {settings}"
    file = home / "token"
    no_environment.setenv("SHAREQUEUE_SERVICE_TOKEN_FILE", str(file))
    settings = Settings.load(home)
    for content, says in ((None, "No such file"), (b" \n", "is empty"), (b"sq_\xff", "not ASCII")):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(SettingMissing, match=says):
            _ = settings.service_token
    file.write_text("sq_of-the-file\n")
    assert settings.service_token == "sq_of-the-file"
    assert Settings.load(home, service_token=secret).service_token == secret


def test_the_blocks_of_the_page_on_security_are_taken_by_both_clients(
    home: Path, no_environment: pytest.MonkeyPatch
) -> None:
    """Their variables have names and values that librdkafka and Java know, with real files in place of the page's."""
    pair = Authority(home).signed("client")
    (home / "password").write_text("secret")
    files = {
        "/run/secrets/kafka-password": home / "password",
        "/etc/kafka/ca.pem": home / "authority.pem",
        "/etc/kafka/client.pem": pair.certificate,
        "/etc/kafka/client.key": pair.key,
    }
    page = (Path(__file__).parents[3] / "docs/howto/secured-cluster.md").read_text()
    blocks = [block for block in re.findall(r"```text\n(.*?)```", page, re.S) if "SHAREQUEUE_KAFKA_" in block]
    assert len(blocks) == 3
    for block in blocks:
        with no_environment.context() as environment:
            for line in block.splitlines():
                name, _, value = line.partition("=")
                environment.setenv(name, str(files.get(value, value)))
            settings = Settings.load(home)
            AdminClient(client_config(settings, log_level=0))
            assert spark_options(settings)["kafka.ssl.truststore.type"] == "PEM"


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (
            {"sasl.username": "me", "sasl.password": "x"},
            "SASL_USERNAME is set, but .*SECURITY_PROTOCOL is not set",
        ),
        ({"sasl.mechanism": "PLAIN", "security.protocol": "SSL"}, "SASL_MECHANISM is set, but .* is SSL"),
        ({"ssl.ca.location": "ca.pem"}, "SSL_CA_LOCATION is set, but .*SECURITY_PROTOCOL is not set"),
    ],
)
def test_a_login_that_a_client_would_not_use_is_refused(given: dict[str, str], refused: str) -> None:
    """Without the protocol both clients connect in plaintext, without a word."""
    settings = Settings({"bootstrap_servers": "h:9092", "kafka": given})
    for made in (client_config, spark_options):
        with pytest.raises(SettingMissing, match=refused):
            made(settings)
