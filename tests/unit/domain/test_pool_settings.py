"""How the database is reached and what its roles are called, as settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharequeue.domain.settings import DatabaseOptions, RoleNames, Settings


def test_defaults(tmp_path: Path, no_environment: pytest.MonkeyPatch) -> None:
    """Five connections, a minute a statement, half a minute a lock, idle connections tested; roles by their own
    names."""
    settings = Settings.load(tmp_path)
    assert settings.database == DatabaseOptions(5, 60_000, 30_000, True)
    assert settings.roles == RoleNames(
        "sharequeue_owner", "sharequeue_service", "sharequeue_worker", "sharequeue_reader"
    )


def test_each_is_a_variable(tmp_path: Path, no_environment: pytest.MonkeyPatch) -> None:
    """`SHAREQUEUE_DATABASE_…`, and a copy keeps them."""
    for name, value in {
        "POOL_SIZE": "12",
        "STATEMENT_TIMEOUT_MS": "0",
        "LOCK_TIMEOUT_MS": "250",
        "PRE_PING": "false",
        "OWNER_ROLE": "dba",
        "WORKER_ROLE": "the jobs",
    }.items():
        no_environment.setenv(f"SHAREQUEUE_DATABASE_{name}", value)
    settings = Settings.load(tmp_path).replace(output=tmp_path)
    assert settings.database == DatabaseOptions(12, 0, 250, False)
    assert settings.roles == RoleNames("dba", "sharequeue_service", "the jobs", "sharequeue_reader")


@pytest.mark.parametrize("wrong", [{"pool_size": 0}, {"statement_timeout_ms": -1}, {"lock_timeout_ms": -1}])
def test_what_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    """No pool without a connection, no timeout below zero."""
    with pytest.raises(ValueError, match=r"is not valid: expected [01] to "):
        DatabaseOptions(
            pool_size=wrong.get("pool_size", 5),
            statement_timeout_ms=wrong.get("statement_timeout_ms", 1),
            lock_timeout_ms=wrong.get("lock_timeout_ms", 1),
        )
