"""Send requests to the broker, and distinguish its errors from those of the connection.

There is one client for such requests. It is made when it is first needed, and again when its credentials have
changed or no broker has responded. No wait for it is without a limit. The requests are in `topics`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sharequeue.domain.errors import (
    BrokerNotAvailable,
    SaslAuthenticationFailed,
    UnknownTopicOrPartition,
    error_for,
)
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.kafka.clients import Credentials, client_config, credentials, logged_in

_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._FAIL,
        KafkaError._DESTROY,
        KafkaError._DESTROY_BROKER,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    }
)
_ABSENT = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_REFUSED_SECONDS = 2.0
"""How long a request waits for another broker of the cluster once one has refused the client."""
_LISTEN_SECONDS = 0.2
_BACKOFF_MS, _AWAY_BACKOFF_MS = 20, 100
"""librdkafka's `reconnect.backoff.ms`, usually, and for the client after a request that no broker has answered."""


class _ClientReports:
    """A client's reports of its connections. A separate object, so that the client ends with its owner."""

    def __init__(self) -> None:
        self.refusal: KafkaError | None = None
        """The last report of why a connection failed."""

    def note(self, error: KafkaError) -> None:
        """Record an error of the client."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.refusal = error


class BrokerClient:
    """A client for requests to one Kafka cluster, made when it is first needed.

    `timeout` is the longest time for any one request, in seconds. `token` returns tokens, as confluent-kafka's
    `oauth_cb` does, if the settings do not define how to get them. May be used from several threads. The client is
    made again when a file with its password, key or certificates has changed, and after a request that no broker has
    answered: librdkafka sends most requests to the broker that it has heard of as the controller, and waits for that
    one also after its death, although the others name another.
    """

    def __init__(
        self, settings: Settings, timeout: float = 10.0, token: Callable[[str], Any] | None = None
    ) -> None:
        self._settings = settings
        self._timeout = timeout
        self._token = token
        self._client: AdminClient | None = None
        self._credentials: Credentials = ()
        self._heard = _ClientReports()
        self._was_away = False

    @property
    def settings(self) -> Settings:
        """The settings with the address of the cluster and the login."""
        return self._settings

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client and its threads. A later request opens a new one."""
        self._client = None

    def check_settings(self) -> None:
        """Raise SettingMissing if Kafka's client does not accept the settings. The broker is not asked."""
        self._admin()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with these credentials from now on."""
        self._settings = logged_in(self._settings, username, password)
        self._client = None

    def _admin(self) -> AdminClient:
        now = credentials(self._settings)
        client = self._client
        if client is None or now != self._credentials:
            heard = _ClientReports()
            config = client_config(
                self._settings,
                socket_timeout_ms=int(self._timeout * 1000),
                # A new client waits for half of it before it connects: with 100 ms, every run and command would. But
                # if a proxy without a broker takes its connections and closes them, it connects as often as that.
                reconnect_backoff_ms=_AWAY_BACKOFF_MS if self._was_away else _BACKOFF_MS,
                # A broker that is available again is noticed within a second, not after librdkafka's ten.
                reconnect_backoff_max_ms=1000,
                error_cb=heard.note,
            )
            config["log_level"] = 3
            if self._token is not None:
                config["oauth_cb"] = self._token
            try:
                client = AdminClient(config)
            except KafkaException as error:
                raise SettingMissing(
                    f"Kafka's client does not accept its settings ({error.args[0].str()}): check the "
                    "variables SHAREQUEUE_KAFKA_…"
                ) from error
            self._client, self._credentials, self._heard = client, now, heard
        return client

    def _result(self, future: Future[Any]) -> Any:
        try:
            found = self._waited(future)
        except TimeoutError:
            raise self._unavailable("no answer") from None
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in _UNREACHABLE:
                raise self._unavailable(error.str()) from failure
            if error.code() in _ABSENT:
                raise UnknownTopicOrPartition(error.str()) from None
            raise error_for(int(error.code()), error.str()) from failure
        self._was_away = False
        return found

    def _waited(self, future: Future[Any]) -> Any:
        """Wait for the result, and meanwhile handle the client's reports of its connections.

        The client repeats a login with a refused password until the time limit.
        """
        began = time.monotonic()
        while True:
            try:
                return future.result(_LISTEN_SECONDS)
            except TimeoutError:
                # The result itself may be this error.
                if future.done():
                    raise
            self._listen()
            waited = time.monotonic() - began
            refusal = self._heard.refusal
            refused = refusal is not None and (
                refusal.code() == KafkaError._AUTHENTICATION or _is_of_tls(refusal)
            )
            # librdkafka applies the limit of the request; the longer one here is for a client that is stuck.
            if waited > self._timeout + 5 or (refused and waited > _REFUSED_SECONDS):
                raise TimeoutError

    def _listen(self) -> None:
        if (client := self._client) is not None:
            client.poll(0)

    def _unavailable(self, reason: str) -> BrokerNotAvailable:
        self._listen()
        where = f"Kafka at {self._settings.bootstrap_servers}"
        refusal = self._heard.refusal
        self._client, self._heard, self._was_away = None, _ClientReports(), True
        if refusal is not None and refusal.code() == KafkaError._AUTHENTICATION:
            return SaslAuthenticationFailed(
                f"{where} refuses the login of this client ({refusal.str()}). Check "
                "SHAREQUEUE_KAFKA_SASL_MECHANISM, and the user and password, or the source of tokens."
            )
        if refusal is not None and _is_of_tls(refusal):
            return BrokerNotAvailable(
                f"{where} and this client do not agree on TLS ({refusal.str()}). Check "
                "SHAREQUEUE_KAFKA_SECURITY_PROTOCOL and the certificates of SHAREQUEUE_KAFKA_SSL_…"
            )
        problem = reason if refusal is None else refusal.str()
        return BrokerNotAvailable(
            f"{where} does not answer ({problem}). Check that it runs and that SHAREQUEUE_BOOTSTRAP_SERVERS is right."
        )


def connection_broke(error: BrokerNotAvailable) -> bool:
    """Return whether a broker closed its connection, or died, with the request on its way: another may answer it."""
    cause = error.__cause__
    broken = (KafkaError._TRANSPORT, KafkaError._DESTROY_BROKER)
    return isinstance(cause, KafkaException) and cause.args[0].code() in broken


def _is_of_tls(error: KafkaError) -> bool:
    """Return whether the error is one of TLS. A refusal of our certificate arrives as a lost connection."""
    return bool(error.code() == KafkaError._SSL or "SSL routines" in error.str())
