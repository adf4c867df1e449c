"""Failed runs and failed checks of a share group reach a webhook, once each, whatever the receiver does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned

from sharequeue.dagster import WebhookResource, share_group_defs, webhook
from sharequeue.dagster.sensors import alerts, alerts_sensor
from sharequeue.dagster.share_group import Alerts
from tests.fixtures.dagster import share_group

ACCEPTED = dg.AssetKey(["orders", "accepted"])
CHECK = dg.AssetCheckKey(ACCEPTED, "good")
GROUP = share_group("orders")


class Receiver:
    """Somebody's HTTP server: what it got, and what it returns next."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.returns: list[int] = []
        self.seconds = 0.0
        """What its answers have taken, by a clock that tests go by."""
        self.drips = threading.Event()
        """Set: a header without an end, byte by byte, until it is cleared."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = receiver.returns.pop(0) if receiver.returns else 200
                receiver.headers.append(self.headers["Authorization"])
                receiver.seconds += 15
                if status == 200:
                    receiver.messages.append(body)
                self.send_response(status)
                while receiver.drips.is_set():
                    self.flush_headers()
                    self.wfile.write(b"x")
                    time.sleep(0.05)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setattr(webhook, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(webhook, "LONGEST_SECONDS", 240.0)
    with dg.DagsterInstance.ephemeral() as made:
        yield made


Tick = Callable[..., str]


@pytest.fixture
def tick(instance: dg.DagsterInstance, receiver: Receiver) -> Tick:
    """Give a function that is one tick, and returns what it says; the cursor lasts."""
    kept: list[str | None] = [None]

    def look(url: str | None = None, **given: Any) -> str:
        sensor = alerts_sensor(GROUP, Alerts(**given), assets=[ACCEPTED], checks=[CHECK])
        pager = WebhookResource(
            url=url or receiver.url,
            headers={"Authorization": "Bearer secret"},
            timeout_seconds=60,
            dagster_url="http://dagster.example/",
        )
        with dg.build_sensor_context(instance, kept[0], resources={"webhook": pager}) as context:
            answer = sensor.evaluate_tick(context)
            kept[0] = answer.cursor
        return str(answer.skip_message)

    return look


def fail(instance: dg.DagsterInstance, asset: dg.AssetKey = ACCEPTED) -> str:
    """A run of one asset that fails; return its id."""

    @dg.asset(key=asset)
    def broken() -> None:
        try:
            raise ValueError("the handler returned nothing\nand more")
        except ValueError as error:
            raise RuntimeError("a round failed") from error

    return dg.materialize([broken], instance=instance, raise_on_error=False).run_id


def evaluate(instance: dg.DagsterInstance, passed: bool, severity: dg.AssetCheckSeverity) -> None:
    """The check has a result."""

    @dg.asset_check(asset=ACCEPTED, name=CHECK.name)
    def good() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=passed, severity=severity, description="3 records missing\nmore")

    @dg.asset(key=ACCEPTED)
    def accepted() -> None: ...

    dg.materialize([accepted, good], instance=instance)


def test_a_failed_run_is_sent_once(tick: Tick, instance: dg.DagsterInstance, receiver: Receiver) -> None:
    """What failed, the first line of the error under it, and a link; not what failed before the first tick, nor
    another's run."""
    fail(instance)
    assert tick() == "0 alerts sent"
    run_id = fail(instance)
    fail(instance, dg.AssetKey("another"))
    assert tick() == "1 alerts sent"
    assert tick() == "0 alerts sent"
    (message,) = receiver.messages
    assert message.pop("happened_at").startswith("20")
    what = "run of __ephemeral_asset_job__, orders__accepted"
    assert message == {
        "text": f"orders: {what} failed: ValueError: the handler returned nothing",
        "kind": "run_failed",
        "group": "orders",
        "what": what,
        "error": "ValueError: the handler returned nothing",
        "severity": "ERROR",
        "run_id": run_id,
        "run_url": f"http://dagster.example/runs/{run_id}",
    }
    assert receiver.headers == ["Bearer secret"]


def test_a_run_without_a_step_that_failed_is_sent_too(
    tick: Tick, instance: dg.DagsterInstance, receiver: Receiver
) -> None:
    """One whose worker was killed has nothing but the monitor's word."""
    tick()
    run = instance.add_run(dg.DagsterRun("orders", status=dg.DagsterRunStatus.STARTED, tags=GROUP.run_tags))
    instance.report_run_failed(run, "The worker of the run was killed.")
    tick()
    (message,) = receiver.messages
    assert (message["what"], message["error"]) == ("run of orders", "The worker of the run was killed.")


def test_a_check_is_sent_when_it_begins_to_fail(
    tick: Tick, instance: dg.DagsterInstance, receiver: Receiver
) -> None:
    """Not again while it keeps failing, again after it has passed; warnings where they are wanted."""
    error, warn = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
    tick()
    for passed, severity, wanted, sent in (
        (False, error, False, 1),
        (False, error, False, 0),
        (True, error, False, 0),
        (False, warn, False, 0),
        (True, error, False, 0),
        (False, warn, True, 1),
        (False, error, True, 1),
    ):
        evaluate(instance, passed, severity)
        assert tick(warnings=wanted) == f"{sent} alerts sent", (passed, severity, wanted)
    assert [message["severity"] for message in receiver.messages] == ["ERROR", "WARN", "ERROR"]
    first = receiver.messages[0]
    assert first["text"] == "orders: check orders/accepted:good failed: 3 records missing"
    assert (first["kind"], first["run_url"]) == (
        "check_failed",
        f"http://dagster.example/runs/{first['run_id']}",
    )


def test_a_check_that_a_later_run_has_only_planned_is_sent(
    tick: Tick, instance: dg.DagsterInstance, receiver: Receiver
) -> None:
    """Its result stands, also when that run dies before it has another one."""
    tick()
    evaluate(instance, False, dg.AssetCheckSeverity.ERROR)
    run = instance.add_run(dg.DagsterRun("orders", status=dg.DagsterRunStatus.STARTED, tags=GROUP.run_tags))
    planned = dg.DagsterEvent(
        dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
        "orders",
        event_specific_data=AssetCheckEvaluationPlanned(asset_key=ACCEPTED, check_name=CHECK.name),
    )
    instance.report_dagster_event(planned, run.run_id)
    assert tick() == "1 alerts sent"
    assert tick() == "0 alerts sent"


def test_a_slow_receiver_gets_the_rest_with_the_next_tick(
    tick: Tick, instance: dg.DagsterInstance, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick that took longer than Dagster lets it would send all of them again."""
    monkeypatch.setattr(alerts, "time", SimpleNamespace(time=time.time, monotonic=lambda: receiver.seconds))
    tick()
    failed = [fail(instance) for _ in range(3)]
    assert tick() == "2 alerts sent; the receiver is slow: the rest is sent with the next tick"
    assert tick() == "1 alerts sent"
    assert [message["run_id"] for message in receiver.messages] == failed


def test_an_answer_without_an_end_is_not_waited_for(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is on the whole request: each single byte comes in time."""
    monkeypatch.setattr(webhook, "LONGEST_SECONDS", 0.3)
    receiver.drips.set()
    began_at = time.monotonic()
    try:
        assert WebhookResource(url=receiver.url, timeout_seconds=0.2).send({}) is webhook.Delivery.FAILED
        assert time.monotonic() - began_at < 60  # the answer itself takes an hour
    finally:
        receiver.drips.clear()


def test_another_locations_job_of_the_same_name_is_not_ours(
    tick: Tick, instance: dg.DagsterInstance, receiver: Receiver
) -> None:
    """Its runs do not have the tag of the group."""
    tick()
    foreign = instance.add_run(dg.DagsterRun("orders", status=dg.DagsterRunStatus.STARTED))
    instance.report_run_failed(foreign, "Somebody else's.")
    assert tick() == "0 alerts sent"


def test_a_receiver_that_is_away_gets_it_later(
    tick: Tick, instance: dg.DagsterInstance, receiver: Receiver
) -> None:
    """An error of its own is tried again three times, then at the next tick; a refusal is not."""
    tick()
    fail(instance)
    receiver.returns = [503, 429, 200]
    assert tick() == "1 alerts sent"
    fail(instance)
    receiver.returns = [500, 500, 500]
    assert "the receiver does not answer" in tick()
    assert "the receiver does not answer" in tick(url="http://127.0.0.1:9/nobody")
    assert "the receiver does not answer" in tick(url="no address")
    assert tick() == "1 alerts sent"
    fail(instance)
    receiver.returns = [404]
    assert tick() == "0 alerts sent"
    assert tick() == "0 alerts sent"
    assert len(receiver.messages) == 2


def test_alerts_are_on_where_somebody_asks_for_them() -> None:
    """Without `alerts` there is no sensor; with it, it runs in a new deployment, and its address comes from the
    environment."""
    assert "orders_alerts" not in {each.name for each in share_group_defs(GROUP).sensors or ()}
    defs = share_group_defs(share_group("orders", alerts={"webhook": "pager"}))
    (sensor,) = [each for each in defs.sensors or () if each.name == "orders_alerts"]
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    assert sensor.required_resource_keys == {"pager"}


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
    """In the address, and in the headers."""
    monkeypatch.setenv("ALERTS_URL", receiver.url)
    monkeypatch.setenv("ALERTS_TOKEN", "Bearer from outside")
    made = WebhookResource(
        url=dg.EnvVar("ALERTS_URL"), headers={"Authorization": dg.EnvVar("ALERTS_TOKEN")}, timeout_seconds=60
    )

    @dg.op
    def send(pager: WebhookResource) -> None:
        assert pager.send({"text": "hello"}).value == "sent"

    @dg.job(resource_defs={"pager": made})
    def job() -> None:
        send()

    assert job.execute_in_process().success
    assert receiver.headers == ["Bearer from outside"]
