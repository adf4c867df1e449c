"""The figures of open keys: of a share-partition, of its group, in metrics, as a list, and as an asset check."""

from __future__ import annotations

import json
from datetime import timedelta
from operator import attrgetter
from uuid import UUID

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.dagster.position import state_of
from sharequeue.dagster.state_checks import STATE_CHECKS
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.reports.read import read_figures
from sharequeue.reports.remarks import remarks_of
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from tests import single
from tests.fixtures.dagster import share_group
from tests.waiting import pass_time

K, L = key_hash(b"k"), key_hash(b"l")
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@pytest.fixture
def at_configs() -> dict[str, str]:
    return {"sharequeue.order": "key"}


@pytest.fixture
def state(at: SharePartition, standing_clock: None, private_database) -> State:  # type: ignore[no-untyped-def]
    """Give a state in which record 0 was released for an hour, 3 and 5 are held behind it, and 1 waits for its dead
    letter."""
    state = State(private_database)
    lease = single.acquire(state, at, "m", None, 6)
    assert lease is not None
    outcomes = {
        ACCEPT: OffsetSet.parse("{[2,3),[4,5)}"),
        RELEASE: OffsetSet.of((0, 1)),
        REJECT: OffsetSet.of((1, 2)),
    }
    held = OffsetSet.parse("{[3,4),[5,6)}")
    keys: dict[UUID | None, OffsetSet] = {K: OffsetSet.of((0, 1)) | held, L: OffsetSet.of((1, 2))}
    later = state.now() + timedelta(hours=1)
    state.acknowledge([LeaseAcknowledgement(lease, outcomes, not_before=later, holds=held, keys=keys)])
    return state


def test_held_records_and_open_keys_are_figures(
    state: State, at: SharePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held are the records behind the first of their key; the oldest key is named by its first open record."""
    since = state.now()
    pass_time(state.database, 60)
    (status,) = state.figures.describe(at.group_id)
    assert (status.held_records, status.open_keys, status.letter_keys) == (2, 2, 0)
    assert (status.open_offset, status.open_since) == (0, since)
    group = read_figures(state.database, at.group_id)
    assert (group.held_records, group.open_keys, group.letter_keys, group.open_seconds) == (2, 2, 0, 60.0)
    (row,) = state.database.rows(sa.text("select * from sharequeue.monitored_share_partitions"))
    assert (row["held_records"], row["open_keys"], row["letter_keys"], row["open_seconds"]) == (2, 2, 0, 60.0)
    keys = state.figures.open_keys(at.group_id, 10)
    columns = attrgetter("key_hash", "first_offset", "state", "held_records")
    assert [columns(key) for key in keys] == [(K, 0, "waiting", 2), (L, 1, "archiving", 0)]
    assert state.figures.open_keys(at.group_id, 1) == keys[:1]
    url = state.database.engine.url.render_as_string(hide_password=False)
    words = ["groups", "describe", "--group", at.group_id, "--database-url", url, "-o", "json"]
    shown = CliRunner().invoke(command, [*words, "--keys"])
    assert [(row["key_hash"], row["state"], row["held"]) for row in json.loads(shown.stdout)] == [
        (K.hex, "waiting", 2),
        (L.hex, "archiving", 0),
    ]


def test_a_key_that_is_open_for_long_fails_the_check(state: State, at: SharePartition) -> None:
    """The check is there in a group that its yaml orders by key, with a day as its limit."""
    (check,) = [each for each in STATE_CHECKS if each.name == "none_held_long"]
    assert not check.is_of(share_group("g"))
    group = share_group("g", configs={"sharequeue.order": "key"})
    assert check.is_of(group)
    assert group.checks.max_held == "1d"
    found = check.judge(group, state_of(state.database, "g", None))
    assert found is not None
    assert (found.problem, found.right) == ("", "2 keys open, none for longer than 1d")
    pass_time(state.database, 24 * 3600 + 1)
    late = check.judge(group, state_of(state.database, "g", None))
    assert late is not None
    assert late.problem.startswith("keys are open for longer than 1d: t-0 behind offset 0 (2 held records).")


def test_no_time_is_promised_while_letters_hold_records(state: State, at: SharePartition) -> None:
    """A letter that holds nothing changes nothing; what is held behind one waits for an operator, however fast others
    end."""
    pass_time(state.database, 100)
    expected = (True, True, False)
    for letters, promised in zip(("{}", "{1}", "{0,1}"), expected, strict=True):
        with state.database.transaction() as connection:
            connection.exec_driver_sql(
                'update sharequeue.open_key_records set letter = 1, archiving = false where "offset" = any (%s)',
                (letters,),
            )
        figures = read_figures(state.database, at.group_id)
        assert figures.throughput is not None
        assert (figures.time_to_drain_seconds is not None) == promised, letters


def test_keys_behind_dead_letters_are_a_remark(state: State, at: SharePartition) -> None:
    """It says what to do, and where they are listed."""
    with state.database.transaction() as connection:
        connection.exec_driver_sql(
            'update sharequeue.open_key_records set letter = 1, archiving = false where "offset" = 1'
        )
    (status,) = state.figures.describe(at.group_id)
    assert (status.held_records, status.open_keys, status.letter_keys) == (2, 2, 1)
    texts = [each.remark for each in remarks_of(state.database, at.group_id, [status])]
    (text,) = [each for each in texts if "dead letters, and their later records are held" in each]
    assert text.startswith("1 key waits for dead letters")
    assert "groups describe --group g --keys" in text
    rows = state.database.rows(
        sa.text("select topic, cast(offsets as text) as offsets from sharequeue.holding_letters")
    )
    assert [tuple(row.values()) for row in rows] == [("t", "{[1,2)}")]
