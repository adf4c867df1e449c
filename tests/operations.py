"""Every SQL function that a role may call, each described once: who may call it, and a call of it that succeeds.

An argument of one name has one meaning in all functions, so its value, and the unusual values that it takes on
purpose, are described once, by its name (`ARGUMENTS`). An operation (`OPERATIONS`) names its roles and what differs
from that. The catalogue of the database has the rest: the arguments, their types, and which have a default.

Read by the tests of roles (each calls what it may), poolers and versions of Postgres (all calls), hostile values
(each argument of each call), and of many connections at once (calls with drawn arguments).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sharequeue.domain.values import SharePartition
from tests.hostile import Function

HELD = SharePartition("g", "t", 0)
"""Member m holds [0,10) of 1,000 records and everything is as usual."""
LETTERS = SharePartition("g", "t", 1)
"""Two records are on their way to the dead-letter topic, in the open batch 1."""
COMPACTION, REDRIVE, SERVICE_LEASE, PUBLICATION, REFUSED_PUBLICATION = (UUID(int=n) for n in range(1, 6))

NAMES = ("empty", "long", "newline", "escape", "quotes")
NUMBERS = ("zero", "minus one", "2^31-1", "-2^31", "2^62", "2^63-2", "2^63-1", "-2^63")
SIZES = ("zero", "2^31-1", "2^62", "2^63-2", "2^63-1")
EITHER = ("true", "false")
ANY_SET = ("empty", "everything", "no end", "no begin", "below 0", "the last offsets", "wide")
NOBODY = "the name of nothing there is: nothing is found, nothing is done, and the result shows it"
ALL_THERE_IS = "more than there is: all of it"
AS_GIVEN = "taken as it is: it is legal, and kept whole"
COMPARED = "another than what is recorded: the group is to be observed, which checks it"


@dataclass(frozen=True)
class Known:
    """A value of the prepared state, by its name in what `prepare` returns."""

    name: str


@dataclass(frozen=True)
class Meant:
    """Hostile values, by their words in `tests.hostile`, that an argument takes on purpose, and why."""

    words: tuple[str, ...] = ()
    why: str = ""


def meant(words: Iterable[str], why: str) -> Meant:
    """Return the values that are meant."""
    return Meant(tuple(words), why)


def each(*words: Iterable[str]) -> list[str]:
    """Return the words for lists of one such value."""
    return [f"of {word}" for more in words for word in more]


@dataclass(frozen=True)
class Argument:
    """What an argument of this name is in every function."""

    value: Any = None
    meant: Meant = Meant()


@dataclass(frozen=True)
class Operation:
    """A function: its roles besides the service, which may call all, and what differs from `ARGUMENTS` in it."""

    roles: tuple[str, ...]
    given: Mapping[str, Any]
    meant: Mapping[str, Meant]


def operation(*roles: str, meant: Mapping[str, Meant] | None = None, **given: Any) -> Operation:
    """Describe an operation. ``given`` are values of its arguments, also of such with a default."""
    return Operation(roles, {f"p_{name}": value for name, value in given.items()}, meant or {})


SOMEBODY = "User:somebody"
TOKEN, TOKENS = Known("token"), [Known("token")]
EITHER_OF = Argument(True, meant(EITHER, "either"))
NAMED = meant(NAMES, NOBODY)
NUMBERED = meant(NUMBERS, NOBODY)
START = meant(("zero", "2^31-1", "2^62", "2^63-2"), "where the group starts, whatever the log's end is")
PASSED = meant(("null", "-infinity", "first"), "a time that has passed: at once")
ALL_PAST = meant(("zero",), "all that is past")
ANY_ACL = meant(("null", *NAMES), "null is any; else none is like it")

ARGUMENTS: Mapping[str, Argument] = {
    # Where, and who.
    "p_group_id": Argument("g", NAMED),
    "p_topic": Argument("t", NAMED),
    "p_partition": Argument(0, NUMBERED),
    "p_topics": Argument(["t"]),
    "p_partitions": Argument([0]),
    "p_topic_id": Argument("id", meant(("quotes",), AS_GIVEN)),
    "p_topic_ids": Argument(["id"]),
    "p_share_partition_id": Argument(Known("share_partition_id"), NUMBERED),
    "p_snapshot_id": Argument(Known("snapshot")),
    "p_state_epoch": Argument(1, meant(("null", "zero"), "not compared; a group may begin at epoch 0")),
    "p_state_epochs": Argument(
        [1], meant(("a null in it", "of zero"), "not compared; a group may begin at epoch 0")
    ),
    "p_member_id": Argument(
        "m", meant(NAMES, f"{NOBODY}; to acquire: any of 1 to 36 characters, as on a broker")
    ),
    "p_member_epoch": Argument(None, meant(("null",), "any member id may, as on a broker")),
    "p_request_id": Argument(
        str(UUID(int=7)), meant(("null", "nobody"), "a call of its own, that nobody repeats")
    ),
    "p_token": Argument(
        TOKEN,
        meant(("null", "nobody"), "null: whatever the member holds, as on a broker; of nobody: nothing"),
    ),
    "p_tokens": Argument(TOKENS),
    # Logs.
    "p_log_start": Argument(0),
    "p_log_end": Argument(1000, meant(SIZES, "what the broker reports; exclusive")),
    "p_last_stable_offset": Argument(1000, meant(SIZES, "at most the log's end counts")),
    "p_log_starts": Argument([0]),
    "p_log_ends": Argument([1000]),
    "p_last_stable_offsets": Argument([1000]),
    "p_start_offset": Argument(3, START),
    "p_start_offsets": Argument([3], meant(each(START.words), START.why)),
    # Leases.
    "p_max_records": Argument(
        5, meant(("zero", "2^31-1", "2^62"), f"none, as on a broker; or {ALL_THERE_IS}")
    ),
    "p_lock_duration_ms": Argument(None, meant(("null",), "the group's")),
    "p_batch_size": Argument(None, meant(("null", *SIZES[1:]), "no batch is split")),
    "p_log_firsts": Argument(None, meant(("null",), "the log's batches are not known")),
    "p_log_lasts": Argument(None, meant(("null",), "the log's batches are not known")),
    "p_log": Argument(
        "(,,,{})", meant(("no batches", "empty batches"), "the log's batches are not known, or none")
    ),
    "p_aborted": Argument(
        None, meant(("empty", *ANY_SET[-2:]), "offsets that are not acquired stay as they are")
    ),
    "p_leave_out": Argument(
        None, meant(("null", *ANY_SET), "it is left out, whether it is there or not; null leaves out nothing")
    ),
    "p_leave_outs": Argument(
        None, meant(("null", "a null in it", *each(ANY_SET)), "nothing is left out, or what the caller had")
    ),
    "p_max_bytes": Argument(1000, meant(("null", *SIZES), "no bound; one record; or all there is")),
    "p_mean_bytes": Argument([10.0]),
    "p_last_attempt": EITHER_OF,
    "p_accept": Argument("{[0,3)}", meant(("empty",), "nothing to accept")),
    "p_release": Argument("{[3,4)}", meant(("empty",), "nothing to release")),
    "p_reject": Argument("{[4,5)}", meant(("empty",), "nothing to reject")),
    "p_gap": Argument("{[5,6)}", meant(("empty",), "no gaps")),
    "p_accepts": Argument(["{[0,3)}"], meant(("of empty",), "nothing to accept")),
    "p_releases": Argument(["{[3,4)}"], meant(("of empty",), "nothing to release")),
    "p_rejects": Argument(["{[4,5)}"], meant(("of empty",), "nothing to reject")),
    "p_gaps": Argument(["{[5,6)}"], meant(("of empty",), "no gaps")),
    "p_outputs": Argument('[{"sink": "s", "location": "l", "records": 3}]', meant(("a list",), "no output")),
    "p_firsts": Argument([0]),
    "p_lasts": Argument([2], meant(("of zero",), "the same call is right with it")),
    "p_types": Argument([1], meant(("of zero",), "a gap")),
    "p_type_counts": Argument(None, meant(("null",), "one type a batch")),
    "p_renew_allowed": EITHER_OF,
    "p_not_before": Argument(None, PASSED),
    "p_opened_at": Argument(
        None,
        meant(
            ("null", "infinity", "-infinity", "first", "last"),
            "null: whenever the batch was opened; else another batch, and nothing is closed",
        ),
    ),
    "p_not_befores": Argument([None], meant(each(PASSED.words[1:]), PASSED.why)),
    "p_backoff": EITHER_OF,
    "p_delays": Argument(None, meant(("null",), "no record has a time of its own")),
    "p_holds": Argument(None, meant(("null", "of empty"), "nothing to hold")),
    "p_keys": Argument(None, meant(("null", "a list"), "no key is reported")),
    "p_kept": Argument(None, meant(("null", "a list of null"), "nothing is kept")),
    "p_all": EITHER_OF,
    "p_hashes": Argument(None, meant(("null", "of nobody", "a null in it"), "of all keys; or of none")),
    "p_cancelled": EITHER_OF,
    "p_refund": EITHER_OF,
    "p_suspects": Argument([False], meant(("null", "of true"), "none was; either")),
    "p_reasons": Argument(
        [None], meant(("null", "a null in it", *each(NAMES)), "words for the dead letter, or none")
    ),
    # Operators.
    "p_execute": EITHER_OF,
    "p_dry_run": EITHER_OF,
    "p_reason": Argument(
        "a test",
        meant(("null", "long", "newline", "escape", "quotes"), "words for a person, any; null takes it back"),
    ),
    "p_offsets": Argument("{[0,3)}"),
    "p_act": Argument("release"),
    "p_amount": Argument("10 minutes", meant(("zero",), "by nothing")),
    "p_pipeline": Argument("jobs:orders", meant(("quotes",), AS_GIVEN)),
    "p_replaces": Argument(None, meant(("null", *NAMES), NOBODY)),
    "p_limit": Argument(10, meant(("2^31-1",), ALL_THERE_IS)),
    "p_keep": Argument("90 days", ALL_PAST),
    "p_retention": Argument("7 days", ALL_PAST),
    "p_gone_for": Argument("0", meant(("zero",), "at once, if the broker reports it still")),
    # Dead letters.
    "p_sequence": Argument(1, NUMBERED),
    "p_dropped": EITHER_OF,
    "p_redrive_id": Argument(str(REDRIVE)),
    "p_wanted": Argument(
        "{[0,9)}", meant(("empty", *ANY_SET[-2:]), "letters that are not there are not sent")
    ),
    # Outputs.
    "p_sink": Argument("sink", NAMED),
    "p_compaction_id": Argument(str(COMPACTION), meant(("nobody",), NOBODY)),
    "p_replay": Argument("again", meant(("quotes",), AS_GIVEN)),
    "p_location": Argument("/other", meant(("newline", "escape", "quotes"), AS_GIVEN)),
    "p_replaced": Argument(["/lease"]),
    "p_records": Argument(2),
    "p_counted": Argument(2),
    "p_grace": Argument("1 hour", meant(("zero",), "at once")),
    "p_claim": Argument("1 minute", meant(("zero",), "nobody waits")),
    "p_number": Argument(1, meant(NUMBERS, "another transfer: nothing happens")),
    "p_known": Argument("{}", meant(("null", *NAMES), "others are kept, and returned")),
    "p_columns": Argument("{}", meant(("null", *NAMES), f"null changes nothing; {AS_GIVEN}")),
    "p_lease_ids": Argument([Known("lease_id")]),
    "p_folders": Argument(["/output/orders"]),
    # Access.
    "p_principal": Argument(SOMEBODY, meant(("null",), "the service itself")),
    "p_operation": Argument("READ"),
    "p_permission": Argument("ALLOW"),
    "p_pattern_type": Argument("LITERAL"),
    "p_resource_name": Argument("g", meant(("quotes",), AS_GIVEN)),
    "p_resource_type": Argument("GROUP"),
    "p_allow": EITHER_OF,
    "p_secret_hash": Argument(bytes(32)),
    "p_lifetime": Argument("90 days", meant(("null",), "it does not expire")),
    "p_note": Argument("a test", meant(("null", "quotes"), f"none; {AS_GIVEN}")),
    "p_scopes": Argument(
        ["heartbeat"], meant(("null", "one more"), "all of them; one that is named twice counts once")
    ),
    "p_scope": Argument("heartbeat", meant(("null", *NAMES), "no token has this hash")),
    "p_token_id": Argument(
        str(UUID(int=12)), meant(("null", "nobody"), f"null: all of the principal's; {NOBODY}")
    ),
    # Members.
    "p_rack_id": Argument(
        "rack", meant(("null", "newline", "escape", "quotes"), f"null: as before; else {AS_GIVEN}")
    ),
    "p_subscribed_topic_names": Argument(["t"], meant(("one more",), "a topic counts once")),
    "p_client_id": Argument("client", meant(("empty", "newline", "escape", "quotes"), AS_GIVEN)),
    "p_client_host": Argument("host", meant(NAMES, AS_GIVEN)),
    "p_max_size": Argument(200, meant(("2^31-1",), ALL_THERE_IS)),
    "p_session_timeout_ms": Argument([1000, 45000, 60000]),
    "p_heartbeat_interval_ms": Argument([1000, 5000, 15000]),
    "p_assignment_interval_ms": Argument([0, 0, 0]),
    "p_assign": EITHER_OF,
    "p_group_epoch": Argument(1, meant(("null", *NUMBERS), "another epoch: nothing is written")),
    "p_member_ids": Argument(["m"], meant(each(NAMES), NOBODY)),
    "p_subscription_changed": Argument(True, meant((*EITHER, "null"), "not known is not changed")),
    # The service.
    "p_cluster_id": Argument("a-cluster", meant(("quotes",), AS_GIVEN)),
    "p_longer_than": Argument(
        "10 seconds", meant(("null", "zero"), "null: no silence is an outage; zero: any is")
    ),
    "p_silence": Argument("10 seconds", meant(("null", "zero"), "null: no silence counts; zero: any does")),
    "p_writes_letters": EITHER_OF,
    "p_stops": Argument(False, meant(EITHER, "either")),
    "p_replica_id": Argument("r", meant(("quotes",), AS_GIVEN)),
    "p_task": Argument("watch"),
    "p_holder": Argument("h", meant(("quotes",), AS_GIVEN)),
    "p_seconds": Argument(10.0),
    "p_configs": Argument(
        '{"group.share.delivery.count.limit": "6"}', meant(("an object",), "all are Kafka's defaults")
    ),
    **{
        f"p_{work}": Argument(1.5, meant(("null", "zero", "tiny"), "seconds ago; null: never"))
        for work in ("watched", "swept", "journal_kept", "letters_written")
    },
    # The journal.
    "p_updates": Argument(500, meant(("2^31-1",), "none has grown by so much")),
    "p_ahead": Argument(2, meant(("zero",), "today's alone")),
    "p_least": Argument(None, meant(SIZES, "tables over so many bytes")),
    "p_day": Argument("2020-01-01"),
}
WORKER, READER, EVERYBODY, SERVICE = ("worker",), ("reader",), ("worker", "reader"), ()
LETTERS_OF: Mapping[str, Any] = {"topic": "dlq.g", "topic_id": "dlq-id"}
PUBLISHED_RECORDS = {
    "p_topics": meant(("of quotes",), AS_GIVEN),
    "p_partitions": meant(("of 2^31-1",), NOBODY),
    "p_offsets": meant(
        ("of empty", "of the last offsets", "of wide"), "records that are not there have no rows"
    ),
}
LETTERS_HELD: Mapping[str, Any] = {
    "sequences": [1],
    "offsets": ["{[3,4)}"],
    "meant": {
        "p_sequences": meant(each(NUMBERS), NOBODY),
        "p_offsets": meant(each(ANY_SET), "letters that are not there hold nothing"),
    },
}
MEMBERS: Mapping[str, Any] = {"group_id": "members"}
OPTIONAL_NAME = meant(("null", *NAMES), NOBODY)
COMPARED_NUMBERS = meant(("a null in it", *each(NUMBERS)), COMPARED)

OPERATIONS: Mapping[str, Operation] = {
    # Many share-partitions at once.
    "observe_many": operation(
        *WORKER,
        meant={
            "p_topics": meant(each(NAMES), NOBODY),
            "p_partitions": meant(each(NUMBERS), NOBODY),
            "p_topic_ids": meant(("of quotes",), AS_GIVEN),
            "p_log_ends": meant(each(SIZES), "what the broker reports"),
            "p_last_stable_offsets": meant(each(NUMBERS), "at most the log's end counts"),
        },
    ),
    "acquire_many": operation(*WORKER, request_id=str(UUID(int=10)), max_bytes=1000, mean_bytes=[10.0]),
    "renew_many": operation(*WORKER),
    "acknowledge_many": operation(
        *WORKER,
        request_id=str(UUID(int=11)),
        outputs='[[{"sink": "s", "location": "l", "records": 3}]]',
        kept='[{"location": "l", "offsets": "{[3,4)}"}]',
    ),
    "close_letters": operation(*SERVICE, **LETTERS_HELD),
    "letters_held": operation(*SERVICE, **LETTERS_HELD),
    "blocked_keys": operation(*WORKER, meant={"p_tokens": meant(("of nobody", "a null in it"), NOBODY)}),
    "release_many": operation(
        *WORKER,
        suspects=[False],
        meant={
            "p_topics": meant(each(NAMES), NOBODY),
            "p_partitions": meant(each(NUMBERS), NOBODY),
            "p_tokens": meant(("of nobody",), NOBODY),
        },
    ),
    # Leases and what becomes of them.
    "acquire": operation(*WORKER, request_id=str(UUID(int=8))),
    "acknowledge": operation(*WORKER, outputs='[{"sink": "s", "location": "l", "records": 3}]'),
    "acknowledge_batches": operation(*WORKER),
    "renew": operation(*WORKER),
    "release": operation(*WORKER),
    "sweep": operation(*WORKER),
    # Share-partitions.
    "initialize": operation(
        *WORKER,
        partition=7,
        start_offset=0,
        meant={
            "p_state_epoch": meant(("zero", "2^31-1"), "a group may begin at epoch 0, and come to the last")
        },
    ),
    "observe": operation(*WORKER),
    "alter_offsets": operation(
        *WORKER,
        meant={
            "p_state_epoch": meant(("null", "zero", "2^31-1"), "null: the next one; a group may begin at 0")
        },
    ),
    "reset_offsets": operation(
        *WORKER,
        group_id="empty",
        meant={
            "p_partitions": meant(("of 2^31-1",), AS_GIVEN),
            "p_topic_ids": meant(("of quotes",), AS_GIVEN),
        },
    ),
    "delete_offsets": operation(*WORKER, group_id="empty"),
    "delete_group": operation(*WORKER, group_id="empty"),
    "pause": operation(
        *WORKER,
        meant={
            "p_topic": meant(("null", *NAMES), f"null: the whole group; {NOBODY}"),
            "p_partition": meant(("null", *NUMBERS), f"null: the whole topic; {NOBODY}"),
        },
    ),
    "force": operation(
        *WORKER, meant={"p_offsets": meant(ANY_SET[-2:], "each part is returned with what it is")}
    ),
    "record_report": operation(*WORKER),
    "report_losses": operation(
        *WORKER,
        meant={
            "p_topics": meant(
                ("no elements", "a null in it", "one more", *each(NAMES)), f"a topic counts once; {NOBODY}"
            )
        },
    ),
    "claim_group": operation(*WORKER),
    "remove_reports": operation(*WORKER),
    # Dead letters.
    "open_dead_letters": operation(*WORKER, partition=1),
    "close_dead_letters": operation(*WORKER, partition=1),
    "hold_dead_letters": operation(*WORKER, partition=1),
    "topics_redriven_for_others": operation(*WORKER),
    "begin_redrive": operation(
        topic="dlq.g",
        topic_id="dlq-id",
        target_topic="t",
        only_group="g",
        target_topics=["t"],
        by_key=False,
        selection='{"cause": "rejected"}',
        target_logs='{"t": {"topic_id": "t-id", "ends": {"0": 5}}}',
        meant={
            "p_topic": meant(("quotes",), AS_GIVEN),
            "p_target_topic": meant(("null", "quotes"), f"null: each record's own; {AS_GIVEN}"),
            "p_only_group": meant(("null", "quotes"), f"null: for all groups; {AS_GIVEN}"),
            "p_target_topics": meant(("no elements", "one more", "of quotes"), AS_GIVEN),
            "p_by_key": meant(EITHER, "either"),
            "p_selection": meant(("an object",), "all letters"),
            "p_target_logs": meant(("an object",), "the whole logs"),
        },
    ),
    "plan_redrive": operation(
        partitions=[0],
        letters=["{[5,6)}"],
        group_ids=["g"],
        topics=["redriven"],
        source_partitions=[0],
        offsets=["{[3,4)}"],
        meant={
            "p_group_ids": meant(("of quotes",), AS_GIVEN),
            "p_topics": meant(("of quotes",), AS_GIVEN),
            "p_partitions": meant(("of 2^31-1",), NOBODY),
            "p_source_partitions": meant(("of 2^31-1",), NOBODY),
            "p_letters": meant(each(ANY_SET), "more letters than there are: nothing is sent for them"),
            "p_offsets": meant(each(ANY_SET), "more records than there are"),
        },
    ),
    "end_redrive": operation(),
    "discard_letters": operation(
        topic="dlq.g",
        topic_id="dlq-id",
        selection='{"cause": "rejected"}',
        partitions=[0],
        letters=["{[5,6)}"],
        meant={
            "p_topic": meant(("quotes",), AS_GIVEN),
            "p_topic_id": meant(("quotes",), AS_GIVEN),
            "p_selection": meant(("an object",), "all letters"),
            "p_partitions": meant(("of 2^31-1",), NOBODY),
            "p_letters": meant(each(ANY_SET), "more letters than there are"),
        },
    ),
    "open_redrive": operation(**LETTERS_OF),
    "trim_redrive": operation(
        **LETTERS_OF,
        meant={"p_offsets": meant(("empty", *ANY_SET[-2:]), "what is left of the batch")},
    ),
    "close_redrive": operation(**LETTERS_OF),
    # Outputs.
    "begin_compaction": operation(*WORKER, compaction_id=str(UUID(int=9))),
    "commit_compaction": operation(*WORKER),
    "commit_replacement": operation(
        *WORKER,
        records=[2],
        meant={"p_records": meant(("of zero", "of 2^31-1"), "how much a lease has in the new folder")},
    ),
    "begin_publication": operation(
        *WORKER,
        offsets=["{[0,3)}"],
        meant={**PUBLISHED_RECORDS, "p_topic_ids": meant(("of quotes",), AS_GIVEN)},
    ),
    "end_publication": operation(
        *WORKER, publication_id=str(PUBLICATION), offsets=["{[0,3)}"], meant=PUBLISHED_RECORDS
    ),
    "forget_publication": operation(*WORKER, publication_id=str(REFUSED_PUBLICATION)),
    "removable_outputs": operation(*WORKER),
    "forget_compaction": operation(*WORKER),
    "kept_of": operation(*WORKER),
    "removable_kept": operation(*WORKER),
    "drop_kept": operation(
        *WORKER,
        meant={"p_lease_ids": meant(("no elements", "a null in it", "one more", *each(NUMBERS)), NOBODY)},
    ),
    "mark_sink": operation(
        *WORKER,
        folder="/output/orders",
        seen=[str(UUID(int=8))],
        meant={
            "p_folder": meant(("newline", "escape", "quotes"), AS_GIVEN),
            "p_seen": meant(("no elements", "one more", "of nobody"), "what is in the folder, ours or not"),
        },
    ),
    "begin_transfer": operation(*WORKER),
    "end_transfer": operation(*WORKER, location="sink:delta:/t"),
    "renew_transfer": operation(*WORKER),
    "hold_transfer": operation(*WORKER),
    "resume_results": operation(
        *WORKER,
        location="sink:kafka:clean",
        meant={"p_location": meant(("null", "newline", "escape", "quotes"), "null: they are sent again")},
    ),
    "keep_sink_columns": operation(*WORKER),
    # Access.
    "add_acl": operation(resource_type="GROUP"),
    "remove_acls": operation(
        resource_type="GROUP",
        meant=dict.fromkeys(
            (
                "p_principal",
                "p_operation",
                "p_permission",
                "p_pattern_type",
                "p_resource_name",
                "p_resource_type",
            ),
            ANY_ACL,
        ),
    ),
    "allow_everyone_if_no_acl_found": operation(),
    "create_token": operation(scopes=["heartbeat"], meant={"p_principal": Meant()}),
    "principal_of_token": operation(scope="heartbeat"),
    "revoke_tokens": operation(
        meant={"p_principal": meant(("null", *NAMES), f"null: whoever's the token is; {NOBODY}")}
    ),
    # Members.
    "heartbeat": operation(
        member_epoch=0,
        session_timeout_ms=[1, 2, 3],
        heartbeat_interval_ms=[1, 2, 3],
        principal=SOMEBODY,
        meant={"p_member_epoch": Meant()},
    ),
    "keep_alive": operation(
        group_ids=["members"],
        member_epochs=[1],
        client_ids=[""],
        client_hosts=["h"],
        principals=[SOMEBODY],
        meant={
            **{
                f"p_{of}": meant(("a null in it", *each(NAMES)), NOBODY)
                for of in ("group_ids", "member_ids", "client_ids", "client_hosts", "principals")
            },
            "p_member_epochs": meant(("a null in it", *each(NUMBERS)), "another epoch"),
        },
    ),
    "leave_group": operation(**MEMBERS, principal=SOMEBODY),
    "unknown_topics": operation(
        **MEMBERS,
        meant={
            "p_principal": meant(
                ("null", *NAMES), "null: the service itself; else any text, as no ACL applies"
            ),
            "p_topics": meant(
                ("no elements", "a null in it", "one more", *each(NAMES)), f"a topic counts once; {NOBODY}"
            ),
        },
    ),
    "expire_members": operation(),
    "refresh_group": operation(meant={"p_group_id": OPTIONAL_NAME}),
    "assign_share_partitions": operation(
        **MEMBERS,
        group_epoch=2,
        share_partition_ids=[Known("share_partition_id")],
        meant={"p_group_id": OPTIONAL_NAME, "p_share_partition_ids": meant(each(NUMBERS), NOBODY)},
    ),
    "assignable_share_partitions": operation(),
    "assignment_of": operation(),
    "metadata_hash": operation(),
    "raise_group_epoch": operation(meant={"p_group_id": OPTIONAL_NAME}),
    # The service.
    "beat": operation(longer_than="10 seconds"),
    "take_service_lease": operation(
        token=str(SERVICE_LEASE),
        meant={"p_task": meant(("newline", "escape", "quotes"), AS_GIVEN)},
    ),
    "hold_service_lease": operation(token=str(SERVICE_LEASE)),
    "end_service_lease": operation(token=str(SERVICE_LEASE), meant={"p_task": NAMED}),
    "hear_replica": operation(silence="10 seconds", writes_letters=True),
    "note_service_work": operation(meant={"p_replica_id": meant(("quotes",), NOBODY)}),
    "extend_locks": operation(),
    "raise_state_epochs": operation(),
    "adopt": operation(),
    "set_service_configs": operation(),
    "note_topics": operation(
        meant={
            "p_topics": meant(each(NAMES), NOBODY),
            "p_topic_ids": meant(
                ("a null in it", *each(NAMES)),
                "null: the topic is gone; another id: so is the one that groups have state of",
            ),
        }
    ),
    "confirm_observations": operation(
        meant={
            "p_topics": meant(each(NAMES), COMPARED),
            "p_partitions": meant(each(NUMBERS), COMPARED),
            "p_topic_ids": meant(("a null in it", *each(NAMES)), COMPARED),
            "p_log_starts": COMPARED_NUMBERS,
            "p_log_ends": COMPARED_NUMBERS,
            "p_last_stable_offsets": COMPARED_NUMBERS,
        }
    ),
    "remove_deleted_topics": operation(meant={"p_group_id": meant(("null", *NAMES), "null: all groups")}),
    "groups_of_topics": operation(),
    # The journal.
    "take_snapshot": operation(),
    "take_snapshots": operation(),
    "make_journal_partitions": operation(),
    "drop_journal_partition": operation(),
    "clear_other_journal": operation(),
    "roll_up_due_days": operation(),
    "give_back_room": operation(),
    "roll_up_journal": operation(*WORKER),
    "journal_days": operation(*WORKER),
    "journal_partitions": operation(*WORKER),
    # Readers.
    "needed_outputs": operation(*READER),
    "sequences_behind": operation(*READER),
    "known_marks": operation(*READER, marks=[str(UUID(int=8))]),
    "sink_owners": operation(*READER),
    "replay_batches": operation(*READER),
    "replay_leases": operation(*READER),
    "replay_open_keys": operation(*READER),
    "replay_outcomes": operation(*READER),
    "replay_share_partition": operation(*READER),
    "snapshots": operation(*READER),
    "verify": operation(*READER, group_id="g"),
    "verify_journal": operation(*READER, group_id="g"),
    # What views are made of.
    "records": operation(*READER),
    # Everybody.
    "authorized_operations": operation(*EVERYBODY),
    "authorized_topic_operations": operation(*EVERYBODY),
    "check_cluster": operation(*WORKER),
    "check_identity": operation(*WORKER),
    "clock": operation(*EVERYBODY),
    "principal": operation(*EVERYBODY),
    "require_read_committed": operation(),
    "schema_version": operation(*EVERYBODY),
    "service_writes_letters": operation(*EVERYBODY),
    "identity_found": operation(*EVERYBODY),
    "stored_configs": operation(*EVERYBODY),
    "stored_service_configs": operation(*EVERYBODY),
}


def may_call(role: str) -> set[str]:
    """Return the operations that a role may call. The service may call all."""
    return {name for name, each in OPERATIONS.items() if role == "service" or role in each.roles}


def is_meant(function: Function, argument: str, word: str) -> bool:
    """Return whether a success with this value means something. What only reads finds nothing where nothing is."""
    own = OPERATIONS[function.name].meant
    found = own[argument] if argument in own else ARGUMENTS.get(argument, Argument()).meant
    return not function.volatile or word in found.words
