"""Every process under the role that `docs/howto/roles-and-acls.md` gives it, from migrating to a drained group.

The owner's member migrates, the service keeps groups, and the demo, Dagster and its runs are workers and readers, no
more.

In between, somebody terminates a run in Dagster's UI.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import pytest
import sqlalchemy as sa

from orchestration.demo.queue import NAME, QUEUE
from orchestration.demo.runs import open_instance
from pipelines.flights.producer import produce
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.local import processes, stack
from sharequeue.local.home import Home
from sharequeue.state import State
from tests import single
from tests.fixtures.demo import GROUP, TOPIC, DemoStack, assert_drained
from tests.fixtures.stack import REPOSITORY
from tests.servers.webserver import LOCATION, Webserver
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.deep]

FLIGHTS = 900
"""One day of flights and a little more: the cancelled ones stand at the end of their day."""
LOGINS = {
    "migrator": ("sharequeue_owner",),
    "coordinator": ("sharequeue_service",),
    "flights_job": ("sharequeue_worker", "sharequeue_reader"),
    "dagster": (),
}


@dataclass(frozen=True)
class Roles:
    """A stack whose processes are logged in as what they are."""

    demo: DemoStack
    urls: dict[str, str]
    ui: Webserver


def sharequeue(demo: DemoStack, *arguments: str, **environment: str) -> str:
    """Run a command; return what it printed on its standard output."""
    command = [sys.executable, "-m", "sharequeue.cli", *arguments, "--home", str(demo.home)]
    ended = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def roles(demo_stack: DemoStack) -> Roles:
    """Give a stack with the flights, the group configured by the service's login, and Dagster's webserver and daemon
    as logins that are no more than the docs say."""
    info = stack.up(demo_stack.home, lambda line: None, service=False)
    sharequeue(demo_stack, "migrate", "--roles")
    superuser = Database(info.database_url)
    urls = {}
    with superuser.transaction() as connection:
        for login, of in LOGINS.items():
            connection.exec_driver_sql(f"create role {login} login password 'secret'")
            for role in of:
                connection.exec_driver_sql(f"grant {role} to {login}")
            url = superuser.engine.url.set(username=login, password="secret")
            urls[login] = url.render_as_string(hide_password=False)
        connection.exec_driver_sql("alter database dagster owner to dagster")
        connection.exec_driver_sql(
            "update sharequeue.schema_migrations set checksum = ''"
            " where name = 'functions/60_operator/record_report.sql'"
        )
    superuser.close()
    urls["dagster"] = str(
        sa.make_url(urls["dagster"]).set(database="dagster").render_as_string(hide_password=False)
    )
    migrated = sharequeue(demo_stack, "migrate", SHAREQUEUE_DATABASE_URL=urls["migrator"])
    assert "99_permissions.sql" in migrated, migrated
    served = stack.up(
        demo_stack.home, lambda line: None, environment={"SHAREQUEUE_DATABASE_URL": urls["coordinator"]}
    )
    assert served.service_url is not None
    demo_stack.environment.update(
        SHAREQUEUE_DATABASE_URL=urls["flights_job"],
        SHAREQUEUE_DAGSTER_URL=urls["dagster"],
        SHAREQUEUE_SERVICE_URL=served.service_url,
    )
    produce(demo_stack.settings, limit=FLIGHTS)
    with Database(urls["coordinator"]) as service:
        QUEUE.configure(service)
    started = json.loads(sharequeue(demo_stack, "up", "--ui", "--output", "json", **demo_stack.environment))
    return Roles(demo_stack, urls, Webserver(started["dagster"]))


def deliver_once(settings: Settings, service: Database) -> None:
    """Have all records released at their first delivery of two: the next one is their last."""
    alter_group_configs(service, GROUP, {"share.delivery.count.limit": "2"})
    topics = Topics(settings)
    topic = topics.describe([TOPIC])[TOPIC]
    with Database.open(settings) as database:
        state = State(database)
        for partition, log in topics.offsets(TOPIC).items():
            at = SharePartition(GROUP, TOPIC, partition)
            state.initialize(at, topic.topic_id, 0, 0)
            single.observe(state, at, topic.topic_id, log.log_start, log.log_end, log.log_end)
            lease = single.acquire(state, at, "first", None, FLIGHTS)
            assert lease is not None
            assert lease.offsets.count == log.log_end - log.log_start
            single.acknowledge(state, lease, {AcknowledgeType.RELEASE: lease.offsets})


def test_a_run_that_is_terminated_in_the_ui_costs_nothing(roles: Roles) -> None:
    """A run that is launched and terminated through GraphQL, while Spark reads records at their last delivery from a
    broker that is silent: it ends as canceled, everything is there again at once, none of it a suspect, and no
    record is given up."""
    demo = roles.demo
    with Database(roles.urls["coordinator"]) as service:
        deliver_once(demo.settings, service)
    ui = roles.ui
    run = ui.launch(NAME)
    until = partial(wait_until, seconds=PATIENCE_S, otherwise=lambda: ui.run(run))
    broker = processes.find(Home.at(demo.home), "kafka")
    assert broker is not None
    with demo.database() as database:
        state = State(database)
        until(lambda: sum(lease.records for lease in state.figures.leases(GROUP)) == FLIGHTS)
        # Made by Spark before the first task that reads; a broker that is silent then keeps it there.
        until(lambda: any((demo.home / "output").rglob("_temporary")))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            ui.terminate(run)
            until(lambda: not state.figures.leases(GROUP))
            until(lambda: ui.status(run) != "CANCELING")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert ui.status(run) == "CANCELED"
        with open_instance(demo.settings) as instance:
            said = [str(entry) for entry in instance.all_logs(run)]
        said += [path.read_text() for path in (demo.home / "dagster").rglob("*.err") if run in path.parts]
        assert [each for each in said if "py4j" in each.lower()] == []
        found = state.figures.describe(GROUP)
        assert sum(status.available for status in found) == FLIGHTS
        assert {(status.archiving, status.highest_delivery_count) for status in found} == {(0, 1)}
        assert state.dead_letters.written(GROUP) == []
        assert database.rows(sa.text("select member_id from sharequeue.group_members")) == []


def test_the_demo_works_with_each_process_under_its_role(roles: Roles) -> None:
    """The demo takes it from there: one run of one round, whose leases have everything, and the ledger is exact.
    Dagster shows it as a run of the code location, and executes it again."""
    demo = roles.demo
    printed = demo.run("--records", str(FLIGHTS))
    assert f"1 rounds, {FLIGHTS:,} records leased, lag 0" in printed
    assert re.search(r"all \d\d passed", printed)
    fate = assert_drained(demo)
    assert len(fate.accepted) + len(fate.dead) == FLIGHTS
    assert demo.run_statuses() == ["CANCELED", "SUCCESS"]

    latest, _ = (each["runId"] for each in roles.ui.runs())
    assert roles.ui.run(latest)["repositoryOrigin"] == LOCATION
    assert roles.ui.ends(roles.ui.again(latest, "ALL_STEPS")) == "SUCCESS"
    assert_drained(demo)
