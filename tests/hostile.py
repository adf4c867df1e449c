"""What no caller should send: hostile values for every type of argument; and which functions may be called at all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from sharequeue.database import Database

NOBODY = "00000000-0000-4000-8000-00000000dead"
LONG = "".join(hashlib.sha256(str(i).encode()).hexdigest() for i in range(94))[:6000]
"""Six thousand characters that do not compress: an index takes 2,704 bytes of a row."""

_TEXT: Mapping[str, Any] = {
    "empty": "",
    "long": LONG,
    "newline": "a\nb",
    "escape": "a\x1b[2Jb",
    "quotes": "a'; --\"",
}
_INTEGER = {"zero": 0, "minus one": -1, "2^31-1": 2**31 - 1, "-2^31": -(2**31)}
_BIGINT = {
    **_INTEGER,
    "2^62": 2**62,
    "2^63-2": 2**63 - 2,
    "2^63-1": 2**63 - 1,
    "-2^63": -(2**63),
}
_SMALLINT = {"zero": 0, "minus one": -1, "2^15-1": 2**15 - 1, "-2^15": -(2**15)}
_JSON = {
    "an object": "{}",
    "a list": "[]",
    "json null": "null",
    "a string": '"x"',
    "a number": "1",
    "a list of a number": "[1]",
    "a list of null": "[null]",
    "a list of an empty object": "[{}]",
    "an object of unknown names": '{"nosuch": "1"}',
    "nested": '{"group.share.delivery.count.limit": {"a": [1]}}',
    "not a number": '{"group.share.delivery.count.limit": "many"}',
    "a number too large": '{"group.share.delivery.count.limit": "9223372036854775808"}',
    "json null inside": '{"group.share.delivery.count.limit": null}',
    "output without a number": '[{"sink": "s", "location": "l", "records": "many"}]',
    "output of nothing": '[{"sink": null, "location": null, "records": null}]',
    "output twice": '[{"sink": "s", "location": "l", "records": 1}, {"sink": "s", "location": "l", "records": 1}]',
    "output below none": '[{"sink": "s", "location": "l", "records": -1}]',
    "output with a fraction": '[{"sink": "s", "location": "l", "records": 0.5}]',
    "output too large": '[{"sink": "s", "location": "l", "records": 1e30}]',
    "output with a long name": f'[{{"sink": "{LONG}", "location": "l", "records": 1}}]',
}
_SETS = {
    "empty": "{}",
    "everything": "{(,)}",
    "no end": "{[0,)}",
    "no begin": "{(,3)}",
    "below 0": "{[-5,3)}",
    "the last offsets": "{[9223372036854775805,9223372036854775807)}",
    "wide": "{[0,1),[9223372036854775000,9223372036854775001)}",
}
_INTERVAL = {
    "zero": "0",
    "minus one day": "-1 day",
    "very long": "170000000 years",
    "very long ago": "-170000000 years",
}
_TIME = {
    "infinity": "infinity",
    "-infinity": "-infinity",
    "last": "294276-12-31 23:59:59+00",
    "first": "4713-01-01 00:00:00+00 BC",
}

_OF_TYPE: Mapping[str, Mapping[str, Any]] = {
    "text": _TEXT,
    "smallint": _SMALLINT,
    "integer": _INTEGER,
    "bigint": _BIGINT,
    "double precision": {
        "zero": 0,
        "minus one": -1,
        "infinity": "infinity",
        "no number": "nan",
        "tiny": 1e-300,
    },
    "uuid": {"nobody": NOBODY},
    "bytea": {"empty": b"", "too long": b"x" * 6000},
    "boolean": {"true": True, "false": False},
    "jsonb": _JSON,
    "int8multirange": _SETS,
    "interval": _INTERVAL,
    "timestamp with time zone": _TIME,
    "fetched_log": {
        "no batches": "(1,,,{})",
        "empty batches": "(1,{},{},{})",
        "nothing": "(,,,)",
        "below 0": "(-1,,,{})",
        "half": '(1,"{0}",,{})',
        "reversed": '(1,"{5}","{0}",{})',
        "aborted below 0": '(1,,,"{[-5,3)}")',
    },
    "date": {"first": "4713-01-01 BC", "last": "5874897-12-31", "infinity": "infinity"},
}


@dataclass(frozen=True)
class Argument:
    """One argument of a function, by name and Postgres's name of its type."""

    name: str
    type: str
    has_default: bool


@dataclass(frozen=True)
class Function:
    """A function of the schema, as the catalogue has it."""

    name: str
    signature: str
    arguments: tuple[Argument, ...]
    volatile: bool
    immutable: bool
    """Computes from its arguments alone; granted because views call it, and not named an operation anywhere."""
    granted: bool
    """A role other than the owner may call it."""

    def call(self, given: Mapping[str, Any]) -> sa.TextClause:
        """A statement that calls it with the arguments named, each cast to its type."""
        types = {a.name: a.type for a in self.arguments}
        named = ", ".join(f"{name} => cast(:{name} as {types[name]})" for name in given)
        return sa.text(f"select * from sharequeue.{self.name}({named})")  # noqa: S608 - names of the catalogue


def hostile_values(argument: Argument, sane: Any) -> dict[str, Any]:
    """Values for an argument by a word each; null is always one."""
    values: dict[str, Any] = {"null": None}
    if not argument.type.endswith("[]"):
        return values | dict(_OF_TYPE[argument.type])
    values |= {"no elements": [], "a null in it": [None], "one more": [*(sane or [None]), *(sane or [None])]}
    of = _OF_TYPE[argument.type.removesuffix("[]")]
    return values | {f"of {word}": [value] for word, value in of.items()}


def granted_functions(database: Database) -> list[Function]:
    """Return every function of the schema that is granted to anybody but its owner."""
    return [function for function in functions(database) if function.granted]


def functions(database: Database) -> list[Function]:
    """Return every function of the schema but those of triggers."""
    rows = database.rows(
        sa.text(
            "select p.proname as name, cast(cast(p.oid as regprocedure) as text) as signature,"
            " p.provolatile = 'v' as volatile, p.provolatile = 'i' as immutable, exists (select"
            " from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a where a.grantee <> p.proowner)"
            " as granted,"
            " p.pronargs - p.pronargdefaults as needed,"
            " array(select format_type(t, null) from unnest(cast(p.proargtypes as oid[])) with ordinality as a (t, n)"
            " order by n) as types, case when p.proargmodes is null then coalesce(p.proargnames, '{}')"
            " else array(select name from unnest(p.proargnames, p.proargmodes) with ordinality as a (name, mode, n)"
            " where mode in ('i', 'b', 'v') order by n) end as names"
            " from pg_proc p where p.pronamespace = to_regnamespace('sharequeue')"
            " and p.prorettype <> cast('trigger' as regtype) order by 2"
        )
    )
    return [
        Function(
            row["name"],
            row["signature"],
            tuple(
                Argument(name, kind, at >= row["needed"])
                for at, (name, kind) in enumerate(zip(row["names"], row["types"], strict=True))
            ),
            row["volatile"],
            row["immutable"],
            row["granted"],
        )
        for row in rows
    ]
