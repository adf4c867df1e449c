"""A trace from a run's environment to the service's SQL and its log, by the real service as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain import traces
from sharequeue.domain.errors import CoordinatorNotAvailable
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest
from sharequeue.groups.transports import ServiceTransport
from tests.servers.ports import free_port
from tests.waiting import PATIENCE_S, wait_until

GROUP = 'it\'s "a\\group"' + "d" * 234
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_from_the_environment_of_a_run_to_sql_and_log(
    settings: Settings, private_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that waits for a locked group is found by its trace in pg_stat_activity; then the log has it as
    JSON, with group and member as fields."""
    alter_group_configs(private_database, GROUP, {"share.delivery.count.limit": 5})
    port = free_port()
    log = tmp_path / "log"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SHAREQUEUE_")},
        "SHAREQUEUE_DATABASE_URL": private_database.engine.url.render_as_string(hide_password=False),
        "SHAREQUEUE_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "TZ": "Asia/Tokyo",
    }
    command = [sys.executable, "-m", "sharequeue.cli", "serve", "--port", str(port), "--log-format", "json"]
    with log.open("wb") as stderr:
        service = subprocess.Popen(command, env=environment, stderr=stderr, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def lines() -> list[dict[str, str]]:
        return [json.loads(line) for line in log.read_text().splitlines()]

    try:
        wait_until(lambda: _answers(url))
        request = HeartbeatRequest(GROUP, "m" * 22, 0, subscribed_topic_names=("t",), client_id="run 7")
        with (
            private_database.transaction() as connection,
            ThreadPoolExecutor(1) as pool,
        ):
            connection.execute(sa.text("select from sharequeue.share_groups for update"))
            monkeypatch.setenv(traces.VARIABLE, TRACE)
            client = ServiceTransport(url)
            answer = pool.submit(client, request)
            seen = sa.text(
                "select count(*) as seen from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid() and starts_with(query, :comment)"
            )
            # By another connection: a transaction sees the activity as it was when it first looked.
            wait_until(lambda: private_database.rows(seen, comment=traces.comment())[0]["seen"] > 0)
            assert answer.result(PATIENCE_S).error_code == CoordinatorNotAvailable.code
            client.close()
        wait_until(lambda: any("heartbeat" in each["message"] for each in lines()))
        (failed,) = [each for each in lines() if "heartbeat" in each["message"]]
        assert (failed["group"], failed["member"], failed["run"]) == (GROUP, "m" * 22, "run 7")
        assert (failed["trace_id"], failed["span_id"]) == tuple(TRACE.split("-")[1:3])
        assert all(each["time"].endswith("+00:00") for each in lines())
    finally:
        service.terminate()
        service.wait(PATIENCE_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=PATIENCE_S).is_success
    except httpx.HTTPError:
        return False
