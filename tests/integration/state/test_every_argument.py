"""Every function that anybody but the owner may call, with every hostile value for every argument, each alone.

Asked of the catalogue, so that a new function is asked too: it needs a sane call in `tests/sane_calls.py`, and a line
in `MEANT` for what it takes on purpose.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.offsets import MAX_OFFSET, OffsetSet
from sharequeue.settings import RoleNames
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, SharePartition
from tests.hostile import Argument, Function, granted_functions, hostile_values
from tests.sane_calls import Calls, prepare

NAMES = ("empty", "long", "newline", "escape", "quotes")
NUMBERS = ("zero", "minus one", "2^31-1", "-2^31", "2^62", "2^63-2", "2^63-1", "-2^63")
EITHER = ("true", "false")
ANY_SET = ("empty", "everything", "no end", "no begin", "below 0", "the last offsets", "wide")
COMPARED = "another than what is recorded: the group is to be observed, which checks it"
NOBODY = "the name of nothing there is: nothing is found, nothing done, and the answer says so"
ALL_THERE_IS = "more than there is: all of it"
AS_GIVEN = "taken as it is: it is legal, and kept whole"
FIRST_WAY = "the same call is right with it"

Meant = tuple[Iterable[str], str]
MEANT: Mapping[str, Meant] = {
    # Left out on purpose, or any of the kind.
    "*.p_state_epoch": (("null", "zero"), "not compared; a group may begin at epoch 0"),
    "initialize.p_state_epoch": (
        ("zero", "2^31-1"),
        "a group may begin at epoch 0, and come to the last one",
    ),
    "alter_offsets.p_state_epoch": (("null", "zero", "2^31-1"), "null: the next one; the others as above"),
    "*.p_member_epoch": (("null",), "any member id may, as on a broker"),
    "*.p_request_id": (("null", "nobody"), "a call of its own, that nobody repeats"),
    "*.p_token": (
        ("null", "nobody"),
        "null: whatever the member holds, as on a broker; of nobody: nothing",
    ),
    "*.p_lock_duration_ms": (("null",), "the group's"),
    "*.p_batch_size": (("null", "2^31-1", "2^62", "2^63-2", "2^63-1"), "no batch is split"),
    "*.p_log_firsts": (("null",), "the log's batches are not known"),
    "*.p_log_lasts": (("null",), "the log's batches are not known"),
    "*.p_type_counts": (("null",), "one type a batch"),
    "*.p_not_before": (("null", "-infinity", "first"), "a time that has passed: at once"),
    "*.p_aborted": (("empty", "the last offsets", "wide"), "offsets that are not acquired stay as they are"),
    # An answer of no records, and a fetch of none.
    "*.p_max_records": (("zero", "2^31-1", "2^62"), f"none, as on a broker; or {ALL_THERE_IS}"),
    "*.p_lasts": (("of zero",), FIRST_WAY),
    "*.p_types": (("of zero",), "a gap"),
    "*.p_accept": (("empty",), "nothing to accept"),
    "*.p_release": (("empty",), "nothing to release"),
    "*.p_reject": (("empty",), "nothing to reject"),
    "*.p_gap": (("empty",), "no gaps"),
    "*.p_renew": (("empty",), "nothing to renew"),
    "*.p_outputs": (("a list",), "no output"),
    "commit_replacement.p_records": (("of zero", "of 2^31-1"), "how much a lease has in the new folder"),
    "*.p_renew_allowed": (EITHER, "either"),
    "*.p_execute": (EITHER, "either"),
    "*.p_cancelled": (EITHER, "either"),
    "*.p_dropped": (EITHER, "either"),
    "*.p_refund": (EITHER, "either"),
    "acquire.p_leave_out": (
        ("null", "empty", "everything", "no end", "no begin", "below 0", "the last offsets", "wide"),
        "what is in it is left out, whether it is there or not; null leaves out nothing",
    ),
    "*.p_drains": (EITHER, "either"),
    "*.p_dry_run": (EITHER, "either"),
    "*.p_wait": (EITHER, "either"),
    "*.p_allow": (EITHER, "either"),
    "*.p_subscription_changed": ((*EITHER, "null"), "not known is not changed"),
    # Names of nobody.
    "*.p_group_id": ((*NAMES,), NOBODY),
    "raise_group_epoch.p_group_id": (("null", *NAMES), NOBODY),
    "remove_deleted_topics.p_group_id": (("null", *NAMES), "null: all groups"),
    "*.p_topic": ((*NAMES,), NOBODY),
    "*.p_partition": ((*NUMBERS,), NOBODY),
    "*.p_sequence": ((*NUMBERS,), NOBODY),
    "*.p_member_id": ((*NAMES,), f"{NOBODY}; to acquire: any of 1 to 36 characters, as on a broker"),
    "*.p_sink": ((*NAMES,), NOBODY),
    "*.p_compaction_id": (("nobody",), NOBODY),
    "*.p_claim": (("zero",), "nobody waits"),
    "end_transfer.p_number": ((*NUMBERS,), "another transfer: nothing happens"),
    "end_transfer.p_location": (("newline", "escape", "quotes"), AS_GIVEN),
    "keep_sink_columns.p_known": (("null", *NAMES), "others are kept, and returned"),
    "keep_sink_columns.p_columns": (("null", *NAMES), f"null changes nothing; {AS_GIVEN}"),
    "claim_group.p_pipeline": (("quotes",), AS_GIVEN),
    "claim_group.p_replaces": (("null", *NAMES), NOBODY),
    "report_losses.p_topics": (
        ["no elements", "a null in it", "one more", *(f"of {name}" for name in NAMES)],
        f"a topic counts once; {NOBODY}",
    ),
    "*.p_share_partition_id": ((*NUMBERS,), NOBODY),
    "remove_acls.p_principal": (("null", *NAMES), "null is any; else none is like it"),
    "remove_acls.p_operation": (("null", *NAMES), "null is any; else none is like it"),
    "remove_acls.p_permission": (("null", *NAMES), "null is any; else none is like it"),
    "remove_acls.p_pattern_type": (("null", *NAMES), "null is any; else none is like it"),
    "remove_acls.p_resource_name": (("null", *NAMES), "null is any; else none is like it"),
    "remove_acls.p_resource_type": (("null", *NAMES), "null is any; else none is like it"),
    "heartbeat.p_principal": (("null",), "the service itself"),
    "leave_group.p_principal": (("null",), "the service itself"),
    "create_token.p_lifetime": (("null",), "for ever"),
    "create_token.p_note": (("null", "quotes"), f"none; {AS_GIVEN}"),
    "create_token.p_scopes": (("null", "one more"), "all of them; one that is named twice counts once"),
    "principal_of_token.p_scope": (("null", *NAMES), "no token has this hash"),
    "revoke_tokens.p_token_id": (("null", "nobody"), f"null: all of the principal's; {NOBODY}"),
    "revoke_tokens.p_principal": (("null", *NAMES), f"null: whoever's the token is; {NOBODY}"),
    # Members.
    "*.p_assign": (EITHER, "either"),
    "heartbeat.p_rack_id": (("null", "newline", "escape", "quotes"), f"null: as before; else {AS_GIVEN}"),
    "heartbeat.p_subscribed_topic_names": (("one more", "of quotes"), f"a topic counts once; {NOBODY}"),
    "heartbeat.p_client_id": (("empty", "newline", "escape", "quotes"), AS_GIVEN),
    "heartbeat.p_client_host": (("empty", "long", "newline", "escape", "quotes"), AS_GIVEN),
    "heartbeat.p_max_size": (("2^31-1",), ALL_THERE_IS),
    "refresh_group.p_group_id": (("null", *NAMES), NOBODY),
    **{
        f"keep_alive.{name}": (["a null in it", *(f"of {each}" for each in NAMES)], NOBODY)
        for name in ("p_group_ids", "p_member_ids", "p_client_ids", "p_client_hosts", "p_principals")
    },
    "keep_alive.p_member_epochs": (
        ["a null in it", *(f"of {number}" for number in NUMBERS)],
        "another epoch",
    ),
    "backlog_assignment.p_group_id": (("null", *NAMES), NOBODY),
    "rebalance_group.p_group_id": (("null", *NAMES), NOBODY),
    "rebalance_group.p_group_epoch": (("null", *NUMBERS), "another epoch: nothing is written"),
    "assign_share_partitions.p_group_id": (("null", *NAMES), NOBODY),
    "assign_share_partitions.p_group_epoch": (("null", *NUMBERS), "another epoch: nothing is written"),
    "assign_share_partitions.p_member_ids": ([f"of {name}" for name in NAMES], NOBODY),
    "assign_share_partitions.p_share_partition_ids": ([f"of {number}" for number in NUMBERS], NOBODY),
    # Many share-partitions at once: as of one, in arrays.
    "confirm_observations.p_topics": ([f"of {name}" for name in NAMES], COMPARED),
    "confirm_observations.p_partitions": ([f"of {number}" for number in NUMBERS], COMPARED),
    "confirm_observations.p_topic_ids": (["a null in it", *(f"of {name}" for name in NAMES)], COMPARED),
    **{
        f"confirm_observations.{name}": (["a null in it", *(f"of {number}" for number in NUMBERS)], COMPARED)
        for name in ("p_log_starts", "p_log_ends", "p_last_stable_offsets")
    },
    "observe_many.p_topics": ([f"of {name}" for name in NAMES], NOBODY),
    "observe_many.p_partitions": ([f"of {number}" for number in NUMBERS], NOBODY),
    "observe_many.p_topic_ids": (("of quotes",), AS_GIVEN),
    "observe_many.p_log_ends": (
        [f"of {number}" for number in NUMBERS if "-" not in number[0]],
        "what the broker says",
    ),
    "observe_many.p_last_stable_offsets": (
        [f"of {number}" for number in NUMBERS],
        "at most the log's end counts",
    ),
    "release_many.p_topics": ([f"of {name}" for name in NAMES], NOBODY),
    "release_many.p_partitions": ([f"of {number}" for number in NUMBERS], NOBODY),
    "release_many.p_tokens": (("of nobody",), NOBODY),
    "acquire_many.p_max_bytes": (
        ("null", "zero", "2^31-1", "2^62", "2^63-2", "2^63-1"),
        "no bound; one record; or all there is",
    ),
    "acquire_many.p_last_attempt": (EITHER, "either"),
    "acquire_many.p_leave_outs": (
        ("null", "a null in it", *(f"of {each}" for each in ANY_SET)),
        "nothing is left out, or what the caller had",
    ),
    "release_many.p_refund": (EITHER, "either"),
    "release_many.p_suspects": (("null", "of true"), "none was; either"),
    "*.p_state_epochs": (("a null in it", "of zero"), "not compared; a group may begin at epoch 0"),
    "*.p_accepts": (("of empty",), "nothing to accept"),
    "*.p_releases": (("of empty",), "nothing to release"),
    "*.p_rejects": (("of empty",), "nothing to reject"),
    "*.p_gaps": (("of empty",), "no gaps"),
    "*.p_not_befores": (("of -infinity", "of first"), "a time that has passed: at once"),
    # Words and numbers that are as good as any.
    "*.p_topic_id": (("quotes",), AS_GIVEN),
    "add_acl.p_resource_name": (("quotes",), AS_GIVEN),
    "begin_compaction.p_location": (("newline", "escape", "quotes"), AS_GIVEN),
    "*.p_reason": (
        ("null", "long", "newline", "escape", "quotes"),
        "words for a person, any; null takes it back",
    ),
    "*.p_start_offset": (
        ("zero", "2^31-1", "2^62", "2^63-2"),
        "where the group starts, whatever the log's end is",
    ),
    "reset_offsets.p_start_offsets": (("of zero", "of 2^31-1", "of 2^62", "of 2^63-2"), "the same"),
    "reset_offsets.p_partitions": (("of 2^31-1",), AS_GIVEN),
    "reset_offsets.p_topic_ids": (("of quotes",), AS_GIVEN),
    "observe.p_log_end": (("zero", "2^31-1", "2^62", "2^63-2", "2^63-1"), "what the broker says; exclusive"),
    "observe.p_last_stable_offset": (
        ("zero", "2^31-1", "2^62", "2^63-2", "2^63-1"),
        "at most the log's end counts",
    ),
    "force.p_offsets": (("the last offsets", "wide"), "each part is returned with what it is"),
    "*.p_wanted": (("empty", "the last offsets", "wide"), "letters that are not there are not sent"),
    "trim_redrive.p_offsets": (("empty", "the last offsets", "wide"), "what is left of the batch"),
    "pause.p_partition": (("null",), "the whole topic"),
    "pause.p_topic": (("null",), "the whole group"),
    "*.p_limit": (("2^31-1",), ALL_THERE_IS),
    "take_snapshots.p_updates": (("2^31-1",), "none has grown by so much"),
    "make_journal_partitions.p_ahead": (("zero",), "today's alone"),
    "give_back_room.p_least": (("zero", "2^31-1", "2^62", "2^63-2", "2^63-1"), "tables over so many bytes"),
    "*.p_retention": (("zero",), "all that is past"),
    "*.p_keep": (("zero",), "all that is past"),
    "*.p_grace": (("zero",), "at once"),
    "*.p_amount": (("zero",), "by nothing"),
    "*.p_silence": (("null", "zero"), "null: no silence counts; zero: any does"),
    "take_service_lease.p_task": (("newline", "escape", "quotes"), AS_GIVEN),
    "take_service_lease.p_holder": (("quotes",), AS_GIVEN),
    "end_service_lease.p_task": ((*NAMES,), NOBODY),
    "hear_replica.p_replica_id": (("quotes",), AS_GIVEN),
    "note_service_work.p_replica_id": (("quotes",), NOBODY),
    **{
        f"note_service_work.{work}": (("null", "zero", "tiny"), "seconds ago; null: never")
        for work in ("p_watched", "p_swept", "p_journal_kept", "p_drained")
    },
    "*.p_gone_for": (("zero",), "at once, if the broker says so still"),
    "note_topics.p_topic_ids": (
        ("a null in it", *(f"of {name}" for name in NAMES)),
        "null: the topic is gone; another id: so is the one that groups have state of",
    ),
    "note_topics.p_topics": ((*(f"of {name}" for name in NAMES),), NOBODY),
    "*.p_cluster_id": (("quotes",), AS_GIVEN),
    "*.p_longer_than": (("null", "zero"), "null: no silence is an outage; zero: any is"),
    "set_service_configs.p_configs": (("an object",), "all are Kafka's defaults"),
}
HALVES = ("acknowledge_and_acquire", "acknowledge_and_fetch")
"""They answer and lease: one half may be refused while the other takes effect, and each says what became of it."""


class Attempts:
    """Calls in transactions that are taken back, and whether they would have changed a table."""

    def __init__(self, database: Database) -> None:
        self._database = database
        tables = database.rows(
            sa.text(
                "select quote_ident(relname) as name from pg_class where relnamespace = to_regnamespace('sharequeue')"
                " and relkind in ('r', 'p') and not relispartition"
                # A refusal may be kept, for its request to be repeated.
                " and relname <> 'requests' order by 1"
            )
        )
        row = "(select coalesce(string_agg(cast(t as text), ' ' order by cast(t as text)), '') from sharequeue.{} t)"
        rows = [row.format(table["name"]) for table in tables]
        self._dump = sa.text(f"select md5(concat_ws('|', {', '.join(rows)}))")
        with database.transaction() as connection:
            self._before = connection.scalar(self._dump)

    def outcome(self, function: Function, given: Mapping[str, Any]) -> tuple[str, str]:
        """`success`, `refused` by Kafka's name, or what no caller should meet, with what was said."""
        with self._database.engine.connect() as connection:
            transaction = connection.begin()
            try:
                connection.exec_driver_sql("set local statement_timeout = '120s'")
                rows = connection.execute(function.call(given), dict(given)).mappings().all()
                codes = [
                    {row[name] for row in rows} for name in (rows[0] if rows else ()) if "error_code" in name
                ]
                refused = [column - {None, 0} for column in codes if column - {None, 0}]
                if not refused:
                    return "success", ""
                half = function.name in HALVES and len(refused) < len(codes)
                if half or connection.scalar(self._dump) == self._before:
                    return "refused", str(refused)
                return "refused, but something has changed", str(refused)
            except DBAPIError as error:
                state = getattr(error.orig, "pgcode", None) or "none"
                named = state.startswith("SQ") or (not function.volatile and function.immutable)
                return "refused" if named else "not named", f"{state} {str(error.orig).splitlines()[0][:120]}"
            finally:
                transaction.rollback()


def meant(function: Function, argument: Argument, word: str) -> bool:
    """Whether a success means something. What only reads finds nothing where nothing is."""
    if not function.volatile:
        return True
    entry = MEANT.get(f"{function.name}.{argument.name}") or MEANT.get(f"*.{argument.name}", ((), ""))
    return word in tuple(entry[0])


@pytest.fixture
def calls(private_database: Database) -> Calls:
    """The sane calls, in a database whose functions are granted to roles."""
    suffix = uuid.uuid4().hex[:8]
    migrate(private_database, roles=RoleNames(*(f"{each}_{suffix}" for each in RoleNames._fields)))
    return prepare(private_database)


def test_every_argument_of_every_granted_function(private_database: Database, calls: Calls) -> None:
    """A hostile value is refused by name with nothing changed, or is a success that `MEANT` explains."""
    functions = granted_functions(private_database)
    without = sorted({function.name for function in functions} - set(calls))
    assert without == [], f"give a sane call of each in tests/sane_calls.py: {without}"
    attempts = Attempts(private_database)
    wrong = []
    for function in functions:
        sane = calls[function.name]
        outcome, said = attempts.outcome(function, sane)
        assert outcome == "success", f"the sane call of {function.signature} is {outcome}: {said}"
        for argument in function.arguments:
            for word, value in hostile_values(argument, sane.get(argument.name)).items():
                outcome, said = attempts.outcome(function, {**sane, argument.name: value})
                fine = outcome == "refused" or (outcome == "success" and meant(function, argument, word))
                if not fine and (argument.name not in sane or sane[argument.name] != value):
                    wrong.append(f"{function.name}({argument.name} => {word}): {outcome} {said}")
    assert wrong == [], f"{len(wrong)} hostile values:\n" + "\n".join(wrong)


@pytest.mark.parametrize("redelivery", ["fan_out", "kafka"])
def test_the_last_offsets_there_are(private_database: Database, calls: Calls, redelivery: Any) -> None:
    """A log that ends at 2⁶³ − 1 is leased, acknowledged, released and leased again to its end, however much is asked
    for."""
    state, at = State(private_database), SharePartition("g", "t", 2)
    first = MAX_OFFSET - 9
    state.initialize(at, "id", first, 1)
    state.observe(at, "id", first, MAX_OFFSET + 1, MAX_OFFSET + 1)
    lease = state.acquire(at, "m", None, 3, redelivery=redelivery)
    assert lease is not None
    for _ in range(2):
        done = state.fetches.acknowledge_and_acquire(
            lease, {AcknowledgeType.ACCEPT: lease.offsets}, 2, redelivery=redelivery
        )
        assert done.refusal is None
        assert done.lease is not None
        lease = done.lease
    state.acknowledge(lease, {AcknowledgeType.RELEASE: lease.offsets})
    lease = state.acquire(at, "m", None, 2**62, redelivery=redelivery)
    assert lease is not None
    while lease is not None:
        state.acknowledge(lease, {AcknowledgeType.ACCEPT: lease.offsets})
        lease = state.acquire(at, "m", None, 2**62, redelivery=redelivery)
    [status] = [each for each in state.figures.describe("g") if each.partition == 2]
    assert (status.spso, status.speo, status.lag) == (MAX_OFFSET + 1, MAX_OFFSET + 1, 0)
    assert state.figures.verify("g") == []


def test_offsets_to_the_last_are_a_set() -> None:
    """What the state calls its largest offset is one in Python too."""
    assert OffsetSet.of((MAX_OFFSET, MAX_OFFSET + 1)).count == 1
