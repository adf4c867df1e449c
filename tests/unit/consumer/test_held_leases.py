"""What is said of a lease's records, and what they look like."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Message
from pyarrow.fs import LocalFileSystem

from sharequeue import Settings
from sharequeue.consumer import failures as module
from sharequeue.consumer.acknowledgements import Acknowledgements
from sharequeue.consumer.failures import Failures
from sharequeue.consumer.held_leases import LeaseOutcomes, with_delivery_counts
from sharequeue.deadletters.attempts import read_errors
from sharequeue.domain.errors import CoordinatorNotAvailable
from sharequeue.domain.names import folder_name
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import SharePartition
from tests.fixtures.consumer import be_patient
from tests.unit.consumer.stub import consumer_of, holding_of, lease_of, messages_of, put
from tests.waiting import PATIENCE_S, wait_until

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
STATE_ID = UUID(int=7)


def failures_in(settings: Settings) -> Failures:
    """Return the writer of errors of a state."""
    return Failures(settings, lambda: STATE_ID)


def test_records_with_and_without_a_leader_epoch() -> None:
    """Both get their delivery count; an old message format has no leader epoch."""
    messages = [Message("t", 0, 0, leader_epoch=7), Message("t", 0, 1)]
    counted = with_delivery_counts(messages, lease_of(OffsetSet.of((0, 2))))
    assert [(each.leader_epoch(), each.delivery_count()) for each in counted] == [(7, 1), (None, 1)]


def test_errors_of_a_lease_and_of_what_was_renewed_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One folder, which one acknowledgement names: a lease's second output of that name would be refused."""
    be_patient(monkeypatch)
    failures = failures_in(Settings.load(str(tmp_path)))
    holding = holding_of(0, 2)
    taken = LeaseOutcomes({}, renewed=messages_of(1, 2))
    state: Any = SimpleNamespace(fetches=SimpleNamespace(acknowledge_batches=lambda *_, **__: None))
    [renewed] = Acknowledgements([(holding, taken)]).carry_out(state, failures, 15_000)[1]
    # The lease was of 30 s; the group has shortened its locks since.
    assert renewed.lock.deadline < holding.lock.deadline
    first = failures.output(holding, {0: "a"})
    assert first is not None
    assert failures.output(renewed, {1: "b"}) is None
    assert len(list(Path(first.location).iterdir())) == 2


def test_locks_lapse_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """``time.monotonic`` stands still meanwhile: what has lapsed is not handed out."""
    with consumer_of() as consumer:
        put(consumer, 0, 3)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        monkeypatch.setattr(time, "clock_gettime", lambda clock: now + 31 * (clock == time.CLOCK_BOOTTIME))
        assert not consumer.poll(0)
        assert consumer._handover.queue.leases() == []


def test_errors_do_not_hold_up_acknowledgements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that does not answer is waited for once, a tenth of the lock. Its errors, and those that came
    meanwhile, are written when it answers; the acknowledgements have named the folders."""
    answer, write = threading.Event(), module._write_table

    def slow(*arguments: Any) -> None:
        answer.wait(PATIENCE_S)
        write(*arguments)

    monkeypatch.setattr(module, "_write_table", slow)
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    failures = failures_in(Settings.load(str(tmp_path)))
    late = failures.output(holding_of(0, 1), {0: "a"})
    monkeypatch.setattr(module, "PATIENCE_S", 30.0)
    behind = failures.output(holding_of(1, 2), {1: "b"})
    assert late is not None
    assert behind is not None
    assert read_errors(late.location) is None
    answer.set()
    failures.finish(120)
    be_patient(monkeypatch)
    found = [read_errors(output.location) for output in (late, behind)]
    assert [table is not None and table["error"].to_pylist() for table in found] == [["a"], ["b"]]
    assert failures.output(holding_of(2, 3), {2: "c"}) is not None


def test_errors_that_wait_for_a_slow_folder_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond the bound are not written; their folder is named, so the letter says that they are missing."""
    answer = threading.Event()
    monkeypatch.setattr(module, "_write_table", lambda *_: answer.wait(PATIENCE_S))
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    monkeypatch.setattr(module, "MOST_WAITING", 1)
    failures = failures_in(Settings.load(str(tmp_path)))
    outputs = [failures.output(holding_of(at, at + 1), {at: "a"}) for at in range(2)]
    assert all(outputs)
    assert len(failures._waiting) == 1
    answer.set()
    failures.finish(120)


def test_errors_are_removed_after_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the day: old ones go, once a day, with what is written then."""
    be_patient(monkeypatch)
    monkeypatch.setattr(module, "datetime", SimpleNamespace(now=lambda _: NOON))
    settings = Settings.load(str(tmp_path))
    group = Path(settings.output) / module.FOLDER / str(STATE_ID) / "g"
    today = NOON.date()
    days = [str(today - timedelta(days=ago)) for ago in (31, 30, 1)]
    for name in (*days, "else"):
        (group / name / "token").mkdir(parents=True)
    assert failures_in(settings).output(holding_of(0, 1), {0: "a"}) is not None
    wait_until(lambda: not (group / days[0]).exists())
    assert sorted(each.name for each in group.iterdir()) == sorted([*days[1:], str(today), "else"])


@pytest.mark.parametrize("group", ["..", ".", "../..", "a/../..", "_", "~"])
def test_only_days_of_the_groups_own_folder_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """Whatever the group's name is: folders that are named like a day stay beside the output, in it, in the folder of
    all groups, and in those of other groups and other databases."""
    be_patient(monkeypatch)
    monkeypatch.setattr(module, "datetime", SimpleNamespace(now=lambda _: NOON))
    settings = Settings.load(str(tmp_path))
    output = Path(settings.output)
    ours = output / module.FOLDER / str(STATE_ID)
    old = str(NOON.date() - timedelta(days=31))
    parents = (
        output.parent,
        output,
        output / module.FOLDER,
        output / module.FOLDER / "other",
        ours,
        ours / "g",
    )
    for parent in parents:
        (parent / old).mkdir(parents=True)
    holding, failures = holding_of(0, 1), failures_in(settings)
    holding.lease = replace(holding.lease, share_partition=SharePartition(group, "t", 0))
    written = failures.output(holding, {0: "a"})
    assert written is not None
    own = ours / folder_name(group)
    assert Path(written.location).resolve().parent.parent == own.resolve()
    assert own.parent == ours
    wait_until(lambda: failures._cleared is not None)
    (own / old).mkdir()
    failures._cleared = None
    failures._clear(LocalFileSystem(), written.location)
    assert not (own / old).exists()
    assert all((parent / old).exists() for parent in parents)


def test_a_state_that_does_not_answer_costs_the_error_alone(tmp_path: Path) -> None:
    """The acknowledgement goes on without an output."""

    def fails() -> UUID:
        raise CoordinatorNotAvailable

    assert Failures(Settings.load(str(tmp_path)), fails).output(holding_of(0, 1), {0: "a"}) is None
