"""How does a client reach the broker, and prove who it is?

This module turns our settings into what the two client families ask for: librdkafka (confluent-kafka) takes our
names as they are, the Java client inside Spark's connector takes other names for keys, certificates and
credentials. Which topics are read or written, and with which guarantees, is decided by the callers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sharequeue.settings import SettingMissing, Settings

__all__ = ["client_config", "spark_options"]

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# What librdkafka and its Python client spell with an underscore themselves.
_WITH_UNDERSCORE = frozenset(
    {"error_cb", "log_level", "logger", "oauth_cb", "on_commit", "stats_cb", "throttle_cb"}
)
_SAME_IN_JAVA = (
    "security.protocol",
    "sasl.jaas.config",
    "sasl.kerberos.service.name",
    "ssl.key.password",
    "client.dns.lookup",
)


def client_config(settings: Settings, **overrides: Any) -> dict[str, Any]:
    """Return a confluent-kafka configuration: address, security, and `overrides`.

    Overrides are written with underscores (`group_id="x"` is `group.id`). Raises `SettingMissing` without an
    address.
    """
    config: dict[str, Any] = {"bootstrap.servers": settings.bootstrap_servers, **settings.kafka}
    for name, value in overrides.items():
        config[name if name in _WITH_UNDERSCORE else name.replace("_", ".")] = value
    return config


def spark_options(settings: Settings) -> dict[str, str]:
    """Return the options of Spark's Kafka connector: address and security under their Java names, prefixed
    `kafka.`.

    Raises `SettingMissing` without an address, and when a security setting has no counterpart in the Java
    client.
    """
    given = dict(settings.kafka)
    options = {"bootstrap.servers": settings.bootstrap_servers}
    options.update({name: given.pop(name) for name in _SAME_IN_JAVA if name in given})
    mechanism = given.pop("sasl.mechanism", None) or given.pop("sasl.mechanisms", None)
    given.pop("sasl.mechanisms", None)
    username, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if mechanism:
        options["sasl.mechanism"] = mechanism
        if username is not None:
            options["sasl.jaas.config"] = _jaas(mechanism, username, password or "")
    if authority := given.pop("ssl.ca.location", None):
        options.update({"ssl.truststore.type": "PEM", "ssl.truststore.location": authority})
    certificate, key = given.pop("ssl.certificate.location", None), given.pop("ssl.key.location", None)
    if certificate and key:
        # Java wants both in one file or inline; librdkafka has them in two files.
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = _read(certificate, "SSL_CERTIFICATE_LOCATION")
        options["ssl.keystore.key"] = _read(key, "SSL_KEY_LOCATION")
    if (algorithm := given.pop("ssl.endpoint.identification.algorithm", None)) is not None:
        options["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    if given:
        names = ", ".join("SHAREQUEUE_KAFKA_" + name.upper().replace(".", "_") for name in sorted(given))
        raise SettingMissing(
            f"Spark's Kafka client has no counterpart for {names}: unset it, or use one of "
            "SECURITY_PROTOCOL, SASL_MECHANISM, SASL_USERNAME, SASL_PASSWORD, SSL_CA_LOCATION, "
            "SSL_CERTIFICATE_LOCATION, SSL_KEY_LOCATION, SSL_KEY_PASSWORD, "
            "SSL_ENDPOINT_IDENTIFICATION_ALGORITHM."
        )
    return {f"kafka.{name}": value for name, value in options.items()}


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


def _read(path: str, variable: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise SettingMissing(
            f"SHAREQUEUE_KAFKA_{variable}={path} cannot be read: {error.strerror}."
        ) from error
