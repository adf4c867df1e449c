"""What a caller of the service hears when a request fails in the database."""

from __future__ import annotations

import psycopg2
import pytest
from sqlalchemy.exc import OperationalError

from sharequeue.cli.failures import database_failure
from sharequeue.database.sqlstates import ReadOnlyDatabase
from sharequeue.domain.errors import (
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    InvalidRequest,
    SaslAuthenticationFailed,
    ShareError,
)
from sharequeue.groups.tokens import TokenRefused
from sharequeue.service.error_responses import status_of, unavailable


@pytest.mark.parametrize(
    ("cause", "heard"),
    [
        (ReadOnlyDatabase(), "The database is read-only: nothing can be written"),
        (psycopg2.OperationalError("connection to 10.0.0.7 refused"), CoordinatorNotAvailable().message),
    ],
)
def test_a_read_only_database_is_named(cause: Exception, heard: str) -> None:
    """It does not pass by waiting, so callers hear it; any other reason is for the service's log only."""
    error = OperationalError("select 1", {}, cause)
    assert unavailable(error).message.startswith(heard)
    assert "10.0.0.7" not in unavailable(error).message


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CoordinatorNotAvailable(), 503),
        (BrokerNotAvailable(), 503),
        (SaslAuthenticationFailed(), 503),
        (TokenRefused(), 401),
        (InvalidRequest(), 400),
    ],
)
def test_what_the_service_cannot_reach_is_not_the_callers_fault(error: ShareError, status: int) -> None:
    """503, so that a client, a proxy or a scrape tries again; also if the broker refuses the service's own login."""
    assert status_of(error) == status


def test_a_command_names_a_read_only_database() -> None:
    """The command has the same words."""
    refused = database_failure(OperationalError("select 1", {}, ReadOnlyDatabase()))
    assert refused.message == str(ReadOnlyDatabase())
