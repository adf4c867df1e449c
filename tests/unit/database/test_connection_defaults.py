"""What a connection to Postgres asks of the network."""

from __future__ import annotations

from sharequeue.database.pool import CONNECTION_DEFAULTS, connection_defaults
from sharequeue.spark.sinks.postgres.tables import connection_of

URL = "postgresql+psycopg2://u:p@h:5432/d"


def test_a_vanished_server_is_noticed_and_the_url_wins() -> None:
    """By the driver and by the executors alike."""
    assert connection_defaults(URL) == CONNECTION_DEFAULTS
    assert {"keepalives_idle", "tcp_user_timeout", "connect_timeout"} <= CONNECTION_DEFAULTS.keys()
    assert (
        connection_of(URL + "?client_encoding=latin1")["client_encoding"] == "utf8"
    )  # for every text, and COPY
    own = URL + "?tcp_user_timeout=5000&application_name=mine"
    assert connection_defaults(own).keys() == CONNECTION_DEFAULTS.keys() - {
        "tcp_user_timeout",
        "application_name",
    }
    there = connection_of(own)
    assert (there["tcp_user_timeout"], there["application_name"], there["keepalives_count"]) == (
        "5000",
        "mine",
        3,
    )
