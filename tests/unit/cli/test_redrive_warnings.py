"""What a redrive cannot send, and a topic that is not one of letters, is said on stderr."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sharequeue.cli import command
from sharequeue.deadletters.redrive.redrive import RedrivePlan, RedriveReport
from sharequeue.deadletters.redrive.redriven_letters import RefusedLetter
from sharequeue.domain.offsets import OffsetSet

SENDS = RedrivePlan(
    ((0, OffsetSet.of((0, 40))),), Counter({"t": 40}), Counter(), gone=20, groups=frozenset({"g"})
)
EXECUTE = ("--execute", "--yes")

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give a function that runs the command on a plan and its report."""

    def ran(plan: RedrivePlan, *words: str, **report: Any) -> Result:
        work = SimpleNamespace(plan=lambda: plan, run=lambda _, given: RedriveReport(uuid.uuid4(), **report))
        monkeypatch.setattr("sharequeue.cli.deadletters.redriving.Redrive", lambda *_, **__: work)
        url = ("--database-url", "postgresql://nowhere.invalid/x")
        return CliRunner().invoke(command, ["dlq", "redrive", "dlq.t", *words, *url])

    return ran


def test_records_that_are_gone_are_a_warning(run: Run) -> None:
    """In the dry run, which counts only what would be sent, and when it is done, of what it has met."""
    dry = run(SENDS)
    assert dry.exit_code == 0, dry.output
    assert ["t", "40", "-"] in [line.split() for line in dry.stdout.splitlines()]
    assert dry.stderr.startswith(
        "warning: 20 dead letters have no copy of their record, and the record is no longer"
    )
    done = run(SENDS, *EXECUTE, sent=38, gone=22)
    assert done.exit_code == 0, done.output
    assert ["38", "0", "22", "0", "0", "0", "0"] in [line.split() for line in done.stdout.splitlines()]
    assert "warning: 22 dead letters have no copy of their record" in done.stderr
    assert "errors.deadletterqueue.copy.record.enable=true" in done.stderr
    assert "warning" not in run(SENDS, *EXECUTE, sent=40).stderr


def test_a_topic_without_letters_is_a_warning(run: Run) -> None:
    """It is no error: a job that puts letters back each night finds none after a good day."""
    for words in ((), EXECUTE):
        nothing = run(RedrivePlan(), *words)
        assert nothing.exit_code == 0, nothing.output
        assert "warning: dlq.t has no dead letters: check the topic's name" in nothing.stderr
        before = run(RedrivePlan(sent_before=3, groups=frozenset({"g"})), *words)
        assert "warning" not in before.stderr


def test_letters_that_could_not_be_sent_are_named_by_their_reason(run: Run) -> None:
    """As `--offsets` takes them, and they are counted; nothing is said if there are none."""
    refused = [RefusedLetter(0, offset, "too large") for offset in (3, 4, 9)] + [
        RefusedLetter(1, 0, "no key")
    ]
    done = run(SENDS, *EXECUTE, sent=36, refused=refused)
    assert done.exit_code == 0, done.output
    assert ["36", "0", "0", "4", "0", "0", "0"] in [line.split() for line in done.stdout.splitlines()]
    assert "4 dead letters could not be sent, and stay in dlq.t" in done.stderr
    assert "warning: 0:3-4, 0:9: too large" in done.stderr
    assert "warning: 1:0: no key" in done.stderr


def test_a_redrive_that_sends_nothing_says_why(run: Run) -> None:
    """Letters that were sent before, or are held back as loops, are counted; a selection without letters is a
    warning."""
    for words in ((), EXECUTE):
        before = run(RedrivePlan(sent_before=3, looping=1, groups=frozenset({"g"})), *words)
        assert (
            "3 were sent before, 0 were discarded, 1 were sent back too often (--max-redrives)"
            in before.stdout
        )
        none = run(RedrivePlan(groups=frozenset({"g"})), "--cause", "exhausted", *words)
        assert none.exit_code == 0, none.output
        assert "warning: dlq.t has dead letters, but none of this selection: cause exhausted" in none.stderr
    assert "sent before" not in run(SENDS, *EXECUTE, sent=40).stdout
