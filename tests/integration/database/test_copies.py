"""A copy of a state in use begins nothing until it is adopted; a copy of an unused state is a new state."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import uuid4

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.domain.errors import FencedStateEpoch, InconsistentClusterId
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.local.doctor import FAILURE, OK, DoctorFinding, examine_servers
from sharequeue.state import State
from tests import single
from tests.fixtures.stack import MakeCopy

HOUR = timedelta(hours=1)
REFUSED = "this is a copy.*sharequeue adopt"


@pytest.fixture
def original(private_database: Database, at: SharePartition) -> State:
    """A state in use: a record is leased, and one waits for its dead letter."""
    state = State(private_database)
    held = single.acquire(state, at, "m", None, 2)
    assert held is not None
    single.acknowledge(state, held, {AcknowledgeType.REJECT: OffsetSet.of((0, 1))})
    return state


@pytest.fixture
def copy(original: State, make_copy: MakeCopy) -> State:
    """A copy of that state in another database of the server."""
    return State(make_copy(original.database))


BEGINNINGS: Sequence[Callable[[State], object]] = (
    lambda state: state.administration.check_cluster("a cluster"),
    lambda state: state.outputs.check_identity(),
    lambda state: state.outputs.mark("g", "/output/sink", []),
    lambda state: state.initialize(SharePartition("g", "t", 1), "id", 0, 1),
    lambda state: state.outputs.begin_transfer("g", "sink", HOUR),
    lambda state: state.outputs.begin_compaction(uuid4(), "g", "sink", "/output/sink/compacted=1"),
    lambda state: state.outputs.removable("g", "sink", HOUR),
    lambda state: state.dead_letters.open(SharePartition("g", "t", 0), 10),
)


def test_nothing_begins_in_a_copy(original: State, copy: State) -> None:
    """The message has both databases and what to do; the same call to the original passes."""
    for begin in BEGINNINGS:
        with pytest.raises(InconsistentClusterId, match=REFUSED) as refused:
            begin(copy)
        for state in (original, copy):
            assert f"database {state.database.engine.url.database} (oid " in str(refused.value)
    for begin in BEGINNINGS:
        begin(original)


def test_no_redrive_begins_or_goes_on_in_a_copy(private_database: Database, make_copy: MakeCopy) -> None:
    """A redrive alone makes a state one that is in use."""
    redrive_id = begun(private_database)
    copy = make_copy(private_database)
    opened = sa.text(
        "select * from sharequeue.open_redrive('dlq', 'id', 0, cast(:id as uuid), '{[0,9]}', 10)"
    )
    with pytest.raises(InconsistentClusterId, match=REFUSED):
        begun(copy)
    with pytest.raises(InconsistentClusterId, match=REFUSED):
        copy.rows(opened, id=redrive_id)
    assert len(private_database.rows(opened, id=redrive_id)) == 1


def test_no_letter_is_discarded_in_a_copy(private_database: Database, make_copy: MakeCopy) -> None:
    """The discarding of letters alone makes a state one that is in use."""
    discard = sa.text(
        "select sharequeue.discard_letters('dlq', 'id', '{}', '{0}', array['{[0,9]}'::int8multirange])"
    )
    assert private_database.rows(discard)[0]["discard_letters"] == 10
    with pytest.raises(InconsistentClusterId, match=REFUSED):
        make_copy(private_database).rows(discard)


def begun(database: Database) -> str:
    """Begin a redrive of a topic `dlq`; return its id."""
    rows = database.rows(
        sa.text(
            "select sharequeue.begin_redrive('dlq', 'id', null, null, '{t}', false, '{}', '{}') as redrive_id"
        )
    )
    return str(rows[0]["redrive_id"])


def test_a_copy_can_be_looked_at(original: State, copy: State) -> None:
    """Figures, invariants and the manifest are those of the original."""
    assert copy.figures.describe() == original.figures.describe()
    assert copy.figures.verify() == []
    assert copy.outputs.counted("g", "sink") == []


def test_copies_of_an_unused_state_are_states_of_their_own(
    private_database: Database, make_copy: MakeCopy
) -> None:
    """With or without a first use, a template that owns nothing outside can be copied: each copy gets its own ids."""
    never_used = State(make_copy(private_database)).outputs.check_identity()
    first = State(private_database)
    first.administration.check_cluster("a cluster")
    template = first.outputs.check_identity()
    second = State(make_copy(private_database)).outputs.check_identity()
    ids = {each for own in (never_used, template, second) for each in (own.state_id, own.origin_id)}
    assert len(ids) == 6
    assert first.outputs.check_identity() == template


def test_a_database_that_is_renamed_is_no_copy(original: State) -> None:
    """The name of a database, and that the server's own id can be read, do not matter."""
    was = original.outputs.check_identity()
    with original.database.transaction() as connection:
        connection.exec_driver_sql(
            "update sharequeue.state_identity set database_name = 'before', system_identifier = null"
        )
    assert original.outputs.check_identity() == was


def test_each_part_of_the_identity_shows_a_copy(original: State) -> None:
    """Another server, another database of the server, a restore into the same database."""
    for moved in (
        "update sharequeue.state_identity set system_identifier = system_identifier + 1",
        "update sharequeue.state_identity set database_oid = 1",
        "update sharequeue.state_identity set table_oid = 1",
    ):
        original.administration.adopt()
        original.outputs.check_identity()
        with original.database.transaction() as connection:
            connection.exec_driver_sql(moved)
        with pytest.raises(InconsistentClusterId, match=REFUSED):
            original.outputs.check_identity()


def test_a_server_that_hides_its_id_is_known_by_the_oids(private_database: Database) -> None:
    """The owner of the schema need not have the right to read it."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql("revoke execute on function pg_control_system() from public")
        connection.exec_driver_sql("grant usage on schema sharequeue_internal, sharequeue to pg_monitor")
        connection.exec_driver_sql("revoke execute on function pg_control_system() from pg_monitor")
        connection.exec_driver_sql("grant execute on function sharequeue_internal.place() to pg_monitor")
        connection.exec_driver_sql("set local role pg_monitor")
        [place] = connection.execute(sa.text("select * from sharequeue_internal.place()"))
    assert place.system_identifier is None
    assert None not in (place.database_oid, place.table_oid)


def test_an_adopted_copy_goes_on(original: State, copy: State, at: SharePartition) -> None:
    """It has the old outputs and a new id for new ones, holders are fenced, and the audit log has it; the original,
    which nobody has asked, is as before."""
    held = single.acquire(copy, at, "m", None, 2)
    assert held is not None
    before, orphan = original.outputs.check_identity(), held.lease_id + 1
    assert copy.administration.adopt() == 1
    after = copy.outputs.check_identity()
    assert after.origin_id == before.origin_id
    assert after.state_id != before.state_id
    assert after.bound_at > before.bound_at
    assert [after.has(before.state_id, number) for number in (held.lease_id, orphan)] == [True, False]
    assert after.has(after.state_id, orphan)
    with pytest.raises(FencedStateEpoch):
        single.acknowledge(copy, held, {AcknowledgeType.ACCEPT: held.offsets})
    acts = copy.database.rows(sa.text("select act from sharequeue.audit_log order by audit_id desc limit 2"))
    assert {row["act"] for row in acts} == {"adopt", "raise_state_epochs"}
    copy.administration.check_cluster("a cluster")
    assert original.outputs.check_identity() == before
    assert copy.administration.adopt() == 1  # again: it does no harm
    assert copy.outputs.check_identity().has(before.state_id, held.lease_id)


def test_marks_are_known_to_the_database_that_set_them(original: State, copy: State) -> None:
    """Also after marks that are gone from the folder are forgotten; the one on its way is kept."""
    first, _ = original.outputs.mark("g", "/output/sink", [])
    second, _ = original.outputs.mark("g", "/output/sink", [])
    with original.database.transaction() as connection:
        connection.exec_driver_sql("select sharequeue.set_clock_offset(interval '2 hours')")
    third, at = original.outputs.mark("g", "/output/sink", [second])
    assert original.outputs.known_marks([first, second, third, uuid4()]) == {second, third}
    assert copy.outputs.known_marks([second, third]) == set()
    assert at > original.outputs.check_identity().bound_at


def test_the_command_shows_before_it_adopts(
    settings: Settings, original: State, copy: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run has both databases and changes nothing; doctor finds the copy."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))

    def adopt(state: State, *options: str) -> Result:
        url = state.database.engine.url.render_as_string(hide_password=False)
        monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
        return CliRunner().invoke(command, ["adopt", *options])

    names = [str(each.database.engine.url.database) for each in (copy, original)]
    shown = adopt(copy)
    assert f"This is database {names[0]} (oid " in shown.output
    assert f"a copy: its state is that of database {names[1]} (oid " in shown.output
    assert "a dry run" in shown.output
    with pytest.raises(InconsistentClusterId):
        copy.outputs.check_identity()
    at_copy = settings.replace(database_url=copy.database.engine.url.render_as_string(hide_password=False))
    [found] = [each for each in examine_servers(at_copy) if each.subject == "identity"]
    assert found.level == FAILURE
    assert "sharequeue adopt" in found.text
    assert "this is not a copy" in adopt(original).output
    done = adopt(copy, "--execute", "--yes", "-o", "json")
    assert json.loads(done.output)["status"] == "done"
    assert json.loads(adopt(copy, "-o", "json").output)["share_partitions"] == 1
    copy.outputs.check_identity()


def test_the_doctor_names_another_kafka_cluster(settings: Settings, private_database: Database) -> None:
    """The offsets of the state are not valid there. To ask does not bind a state that belongs to none."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    here = settings.replace(database_url=url)

    def broker() -> DoctorFinding:
        return next(each for each in examine_servers(here) if each.subject == "broker")

    assert broker().level == OK
    assert private_database.rows(sa.text("select * from sharequeue.kafka_cluster")) == []
    State(private_database).administration.check_cluster("a cluster")
    assert broker().level == FAILURE
    assert "but the state to cluster a cluster" in broker().seen
