"""Configure Kafka clients: address, security, login, log.

This module converts our settings for the two client families: librdkafka (confluent-kafka) uses our names as they
are, the Java client inside Spark's connector uses other names for keys, certificates and credentials. A password that
changes is in a file, which every new client reads. The callers decide which topics are read or written, and with
which guarantees.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharequeue.domain.settings import KAFKA_PREFIX, SettingMissing, Settings
from sharequeue.kafka.text_files import TextUnreadable, read_text

__all__ = ["Credentials", "client_config", "credentials", "logged_in", "portable_config", "spark_options"]

Credentials = tuple[tuple[str, int, int, int], ...]

_PASSWORD_FILE = "sasl.password.file"  # noqa: S105 - a name
_FILES = (
    _PASSWORD_FILE,
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
)
_EXPECTED = {"SASL_PASSWORD_FILE": "a password"}
"""The content of a file that a variable names, if it is not PEM."""
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
# Names that librdkafka and its Python client themselves write with an underscore.
_WITH_UNDERSCORE = frozenset(
    {"error_cb", "log_level", "logger", "oauth_cb", "on_commit", "stats_cb", "throttle_cb"}
)
_JAVA_ALONE = ("sasl.jaas.config", "sasl.login.callback.handler.class")
"""Names that only Java has; librdkafka refuses them and has other names for the same."""
_CONNECTING = (
    *("security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.", "https.", "socket.", "broker.address."),
    *("broker.version.", "api.version.", "connections.", "reconnect.", "retry."),
)
_CONNECTING_NAMES = ("client.dns.lookup", "debug")
"""How the names of settings begin that say how to connect, and the other such names."""
_OLD_KEY = re.compile("BEGIN (RSA|EC|DSA) PRIVATE KEY")
_SAME_IN_JAVA = (
    *("security.protocol", "client.dns.lookup", "sasl.kerberos.service.name"),
    *("ssl.key.password", "ssl.keystore.location", "ssl.keystore.password"),
    *_JAVA_ALONE,
)

REPEAT_SECONDS = 60.0
"""A broker that is away makes several lines a second; this is the time between two about the same connection."""


class FewRepeats(logging.Filter):
    """Pass a line of librdkafka about a connection once in `REPEAT_SECONDS`, by its kind and its thread."""

    _THREAD = re.compile(r"\[thrd:[^\]]*\]")

    def __init__(self) -> None:
        super().__init__()
        self._passed_at: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is not a repetition."""
        text = record.getMessage()
        thread = self._THREAD.search(text)
        if thread is None:
            return True
        key, now = (text.partition(" ")[0], thread[0]), time.monotonic()
        if now - self._passed_at.get(key, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        self._passed_at[key] = now
        return True


LIBRDKAFKA = logging.getLogger("sharequeue.librdkafka")
"""The log of the clients. They would write to stderr by themselves."""
LIBRDKAFKA.addFilter(FewRepeats())


def client_config(settings: Settings, **overrides: Any) -> dict[str, Any]:
    """Return a confluent-kafka configuration: address, security, log, and `overrides`.

    Overrides are written with underscores (`group_id="x"` is `group.id`). Raises `SettingMissing` without an
    address, and for a password file that cannot be read.
    """
    security = {name: value for name, value in _security(settings).items() if name not in _JAVA_ALONE}
    for name in _FILES:
        # librdkafka does not name the file that it cannot read.
        if name in security and security[name] != "probe" and not os.access(security[name], os.R_OK):
            raise SettingMissing(
                f"{KAFKA_PREFIX}{_variable(name)}={security[name]} cannot be read: check that the file "
                "exists and is readable"
            )
    config: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap_servers,
        "logger": LIBRDKAFKA,
        **security,
    }
    for name, value in overrides.items():
        config[name if name in _WITH_UNDERSCORE else name.replace("_", ".")] = value
    return config


def portable_config(settings: Settings) -> dict[str, Any]:
    """Return a confluent-kafka configuration for other machines.

    Certificates and keys are included as text, so that other machines need no file. A key store in PKCS#12 is a file
    that each machine must have. The logger is left out: it belongs to this process.
    """
    config = client_config(settings)
    del config["logger"]
    for name in ("ssl.ca", "ssl.certificate", "ssl.key"):
        if config.get(f"{name}.location", "probe") != "probe":
            config[f"{name}.pem"] = _text(config, name)
    return config


def credentials(settings: Settings) -> Credentials:
    """Return the versions of the files with passwords, keys and certificates.

    They differ once a file has changed: then a long-lived client is made again.
    """
    found = []
    for name in _FILES:
        if name in settings.kafka:
            try:
                file = Path(settings.kafka[name]).stat()
            except OSError:
                # The file is being replaced. A client that is made without it gets an error.
                continue
            found.append((name, file.st_ino, file.st_mtime_ns, file.st_size))
    return tuple(found)


def logged_in(settings: Settings, username: str, password: str) -> Settings:
    """Return the settings with this user and password instead of their own."""
    given = {name: value for name, value in settings.kafka.items() if name != _PASSWORD_FILE}
    return settings.replace(kafka={**given, "sasl.username": username, "sasl.password": password})


def spark_options(settings: Settings) -> dict[str, str]:
    """Return the options of Spark's Kafka connector: address and security under their Java names, prefixed
    `kafka.`.

    Certificates and keys are included as text, so that executors on other machines need no file; a key store in
    PKCS#12 is a file that each machine must have. Raises `SettingMissing` without an address, and if a security
    setting has no counterpart in the Java client.
    """
    given = _security(settings)
    options = {"bootstrap.servers": settings.bootstrap_servers}
    options.update({name: given.pop(name) for name in _SAME_IN_JAVA if name in given})
    options = {**_login(given), **options}
    if authority := _text(given, "ssl.ca"):
        options.update({"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority})
    certificate, key = _text(given, "ssl.certificate"), _text(given, "ssl.key")
    if certificate and key:
        if _OLD_KEY.search(key):
            raise SettingMissing(
                "Spark's Kafka client reads private keys in PKCS#8 only, and the one of "
                f"{KAFKA_PREFIX}SSL_KEY_LOCATION is in an older format: convert it by "
                "`openssl pkcs8 -topk8 -nocrypt -in old.key -out new.key`."
            )
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = certificate
        options["ssl.keystore.key"] = key
    elif "ssl.keystore.location" in options:
        options["ssl.keystore.type"] = "PKCS12"
    if (algorithm := given.pop("ssl.endpoint.identification.algorithm", None)) is not None:
        options["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if given:
        names = ", ".join(KAFKA_PREFIX + _variable(name) for name in sorted(given))
        raise SettingMissing(
            f"Spark's Kafka client has no counterpart for {names}: unset it, or use one of "
            "SECURITY_PROTOCOL, SASL_MECHANISM, SASL_USERNAME, SASL_PASSWORD, SASL_PASSWORD_FILE, "
            "SASL_OAUTHBEARER_METHOD=oidc, SASL_OAUTHBEARER_CLIENT_ID, SASL_OAUTHBEARER_CLIENT_SECRET, "
            "SASL_OAUTHBEARER_SCOPE, SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL, SASL_OAUTHBEARER_EXTENSIONS, "
            "SASL_JAAS_CONFIG, SASL_LOGIN_CALLBACK_HANDLER_CLASS, SSL_CA_LOCATION, SSL_CERTIFICATE_LOCATION, "
            "SSL_KEY_LOCATION, SSL_KEY_PASSWORD, SSL_KEYSTORE_LOCATION, SSL_KEYSTORE_PASSWORD, "
            "SSL_ENDPOINT_IDENTIFICATION_ALGORITHM."
        )
    return {f"kafka.{name}": value for name, value in options.items()}


def _security(settings: Settings) -> dict[str, str]:
    """Return the security settings, with the password as its file has it now.

    Raises `SettingMissing` for any other setting: `auto.offset.reset` or `isolation.level` would change which records
    are read, and `enable.idempotence` how often they are written.
    """
    given = dict(settings.kafka)
    for name in given:
        if not name.startswith(_CONNECTING) and name not in _CONNECTING_NAMES:
            raise SettingMissing(
                f"{KAFKA_PREFIX}{_variable(name)} is not supported: expected a setting of librdkafka for security or "
                f"connections, for example {KAFKA_PREFIX}SASL_USERNAME. Unset it; how records are read and written "
                "is not a setting"
            )
    _require_protocol(given)
    if (path := given.pop(_PASSWORD_FILE, None)) is not None:
        # Editors and `echo` end the file with a line break, which is not part of the password.
        given["sasl.password"] = _read(path, "SASL_PASSWORD_FILE").rstrip("\r\n")
    return given


def _require_protocol(given: Mapping[str, str]) -> None:
    """Raise SettingMissing for a login, or certificates, that a client would ignore and connect in plaintext."""
    protocol = given.get("security.protocol", "plaintext").lower()
    login = next((name for name in given if name.startswith("sasl.")), None)
    if login is not None and not protocol.startswith("sasl_"):
        unused, expected = login, "SASL_SSL, or SASL_PLAINTEXT"
    elif "security.protocol" not in given and (of_tls := [name for name in given if name.startswith("ssl.")]):
        unused, expected = of_tls[0], "SSL, or SASL_SSL"
    else:
        return
    variable = f"{KAFKA_PREFIX}SECURITY_PROTOCOL"
    has = f"is {given['security.protocol']}" if "security.protocol" in given else "is not set"
    raise SettingMissing(
        f"{KAFKA_PREFIX}{_variable(unused)} is set, but {variable} {has}: the client would ignore it and connect in "
        f"plaintext. Set {variable} to {expected}, or unset {KAFKA_PREFIX}{_variable(unused)}"
    )


def _login(given: dict[str, str]) -> dict[str, str]:
    """Return a Java client's settings for SASL; used entries are removed from `given`."""
    mechanism = given.pop("sasl.mechanism", None) or given.pop("sasl.mechanisms", None)
    given.pop("sasl.mechanisms", None)
    username, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if not mechanism:
        return {}
    options = {"sasl.mechanism": mechanism}
    if mechanism.upper() == "OAUTHBEARER":
        options.update(_bearer(given))
    elif username is not None:
        options["sasl.jaas.config"] = _jaas(mechanism, username, password or "")
    return options


def _bearer(given: dict[str, str]) -> dict[str, str]:
    """Return the Java settings that get tokens from the same place as librdkafka's method `oidc`."""
    if given.get("sasl.oauthbearer.method", "").lower() != "oidc":
        return {}
    del given["sasl.oauthbearer.method"]
    jaas_options = {
        "clientId": given.pop("sasl.oauthbearer.client.id", ""),
        "clientSecret": given.pop("sasl.oauthbearer.client.secret", ""),
    }
    if scope := given.pop("sasl.oauthbearer.scope", None):
        jaas_options["scope"] = scope
    for extension in filter(None, given.pop("sasl.oauthbearer.extensions", "").split(",")):
        name, _, value = extension.partition("=")
        jaas_options[f"extension_{name}"] = value
    words = " ".join(f"{name}={_quoted(value)}" for name, value in jaas_options.items())
    return {
        "sasl.login.callback.handler.class": f"{_BEARER}CallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": given.pop("sasl.oauthbearer.token.endpoint.url", ""),
        "sasl.jaas.config": f"{_BEARER}Module required {words};",
    }


def _jaas(mechanism: str, username: str, password: str) -> str:
    module = _LOGIN_MODULES.get(mechanism.upper())
    if module is None:
        known = ", ".join(sorted(_LOGIN_MODULES))
        raise SettingMissing(
            f"SHAREQUEUE_KAFKA_SASL_MECHANISM={mechanism} takes no user and password in Spark's client: "
            f"use one of {known}, or give SHAREQUEUE_KAFKA_SASL_JAAS_CONFIG."
        )
    return f"{module} required username={_quoted(username)} password={_quoted(password)};"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(given: dict[str, str], name: str) -> str | None:
    """Return a certificate or key; the setting has either its text or the path of its file."""
    text, path = given.pop(f"{name}.pem", None), given.pop(f"{name}.location", None)
    if text is None and path is not None:
        return _read(path, _variable(f"{name}.location"))
    return text


def _variable(name: str) -> str:
    return name.upper().replace(".", "_")


def _read(path: str, variable: str) -> str:
    try:
        return read_text(Path(path), _EXPECTED.get(variable, "PEM"))
    except TextUnreadable as error:
        raise SettingMissing(f"{KAFKA_PREFIX}{variable}={error}") from error
