"""What a table of Postgres refuses and how it stores values, as its catalog describes it: read when a run opens the
table, and again when the table refuses rows.

If the two differ, the table was altered during the run, and no record is at fault. Changes that cannot make a table
refuse a row that it accepted before are not reported: a new column that may be null or has a default, a new
partition, a constraint that is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Definition = Mapping[str, str]
"""By the name of a part, such as `column amount` or `constraint orders_check`: its text."""

_PARTS = """
    with recursive tables as (
        select c.oid, c.relname, c.oid = %(table)s as is_target,
            case when c.oid = %(table)s then '' else ' of partition ' || c.relname end as whose
        from pg_class c
        where c.oid = %(table)s or c.oid in (select relid from pg_partition_tree(cast(%(table)s as regclass)))
    ),
    columns as (
        select t.whose, t.is_target, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated, a.attidentity,
            d.oid as default_oid, pg_get_expr(d.adbin, d.adrelid) as default_text
        from tables t join pg_attribute a on a.attrelid = t.oid
            left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attnum > 0 and not a.attisdropped
    ),
    used as (
        select atttypid as type from columns where is_target
        union
        select case t.typtype when 'd' then t.typbasetype else t.typelem end
        from used join pg_type t on t.oid = used.type where t.typtype = 'd' or t.typelem <> 0
    ),
    constraints as (
        select c.oid, c.conname || coalesce(t.whose, '') as name
        from pg_constraint c left join tables t on t.oid = c.conrelid
        where c.contype in ('c', 'f', 'p', 'u', 'x') and (c.contypid in (select type from used)
            or t.is_target or (t.oid is not null and c.conparentid = 0 and c.coninhcount = 0))
    ),
    triggers as (
        select g.oid, g.tgname || t.whose as name, g.tgenabled, g.tgfoid
        from tables t join pg_trigger g on g.tgrelid = t.oid
        where not g.tgisinternal and (t.is_target or g.tgparentid = 0)
    ),
    functions as (
        select tgfoid as oid from triggers
        union
        select d.refobjid
        from constraints c join pg_depend d on d.classid = cast('pg_constraint' as regclass) and d.objid = c.oid
        where d.refclassid = cast('pg_proc' as regclass)
    )
    select 'kind', cast(relkind as text) || coalesce(' ' || pg_get_partkeydef(oid), '')
    from pg_class where oid = %(table)s
    union all
    select 'partition ' || c.relname, coalesce(pg_get_expr(c.relpartbound, c.oid), '')
    from tables t join pg_class c on c.oid = t.oid where not t.is_target
    union all
    select 'column ' || attname, format_type(atttypid, atttypmod) from columns where is_target
    union all
    select 'NOT NULL of ' || c.attname || c.whose, ''
    from columns c
    where c.attnotnull and (c.is_target or not exists (
        select from columns o where o.is_target and o.attname = c.attname and o.attnotnull))
    union all
    select 'default of ' || attname, coalesce(default_text, 'identity')
    from columns
    where is_target and attgenerated = '' and (default_text is not null or attidentity = 'd')
    union all
    select 'generated value of ' || attname, coalesce(default_text, 'identity')
    from columns where is_target and (attgenerated <> '' or attidentity = 'a')
    union all
    select 'type ' || format_type(t.oid, null),
        format_type(t.typbasetype, t.typtypmod) || case when t.typnotnull then ' NOT NULL' else '' end
    from used join pg_type t on t.oid = used.type where t.typtype = 'd'
    union all
    select 'type ' || format_type(e.enumtypid, null), string_agg(e.enumlabel, ', ' order by e.enumsortorder)
    from pg_enum e where e.enumtypid in (select type from used) group by e.enumtypid
    union all
    select 'constraint ' || name, replace(pg_get_constraintdef(oid), ' NOT VALID', '') from constraints
    union all
    select 'index ' || i.relname || t.whose, pg_get_indexdef(i.oid)
    from tables t join pg_index x on x.indrelid = t.oid join pg_class i on i.oid = x.indexrelid
    where (t.is_target or not i.relispartition)
        and not exists (select from pg_constraint c where c.conindid = i.oid and c.contype in ('p', 'u', 'x'))
    union all
    select 'trigger ' || name, pg_get_triggerdef(oid) || ' ' || cast(tgenabled as text) from triggers
    union all
    select 'function ' || cast(cast(p.oid as regprocedure) as text), pg_get_functiondef(p.oid)
    from functions f join pg_proc p on p.oid = f.oid
    where p.prokind = 'f' and p.pronamespace <> cast('pg_catalog' as regnamespace)
    union all
    select 'rule ' || r.rulename || t.whose, pg_get_ruledef(r.oid) || ' ' || cast(r.ev_enabled as text)
    from tables t join pg_rewrite r on r.ev_class = t.oid
    union all
    select 'row security', '' where row_security_active(%(table)s)
    union all
    select 'policy ' || p.polname, concat_ws(' ', p.polcmd, p.polpermissive, p.polroles,
        pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
    from pg_policy p where p.polrelid = %(table)s
    union all
    select 'right to use sequence ' || cast(cast(d.refobjid as regclass) as text), ''
    from columns c join pg_depend d on d.classid = cast('pg_attrdef' as regclass) and d.objid = c.default_oid
        join pg_class s on s.oid = d.refobjid
    where c.is_target and d.refclassid = cast('pg_class' as regclass)
        and case when s.relkind = 'S' then has_sequence_privilege(s.oid, 'usage') end
"""
_HARMLESS_IF_NEW = ("column ", "default ", "partition ", "right ")
_HARMLESS_IF_GONE = ("constraint ", "index ", "NOT NULL ", "row security")
_ONLY_RESTRICT = ("constraint ", "index ", "NOT NULL ")
_CONSTRAINT = re.compile(r'constraint "([^"]+)"')
MOST_CHARACTERS = 200


def definition_of(cursor: Any, table: int) -> Definition:
    """Return the definition of the table with this oid, with its partitions, types, triggers and functions."""
    cursor.execute(_PARTS, {"table": table})
    return {name: text or "" for name, text in cursor.fetchall()}


def column_part(column: str) -> str:
    """Return the name of the part with the type of a column."""
    return f"column {column}"


def changes(before: Definition, after: Definition) -> list[str]:
    """Return the changes by which a table may refuse rows that it accepted before, in words."""
    return list(_changes(before, after))


def are_the_cause(found: Iterable[str], refusals: Iterable[str]) -> bool:
    """Return whether these changes may be the cause of a refusal, given its words. If the table was only restricted
    further, a refusal by a constraint that it had before is of the row.
    """
    parts = list(found)
    if not parts:
        return False
    if not all(each.startswith(_ONLY_RESTRICT) for each in parts):
        return True
    return any(
        (named := _CONSTRAINT.search(words)) is None
        or any(each.startswith((f"constraint {named[1]} ", f"index {named[1]} ")) for each in parts)
        for words in refusals
    )


def _changes(before: Definition, after: Definition) -> Iterator[str]:
    filled = {
        f"NOT NULL of {column}"
        for name in after.keys() - before.keys()
        if (column := name.removeprefix("column ")) != name and f"default of {column}" in after
    }
    for name, text in after.items():
        if name not in before and name not in filled and not name.startswith(_HARMLESS_IF_NEW):
            yield f"{name} is new{f' ({_short(text)})' if text else ''}"
        elif name in before and text != before[name]:
            bodies = name.startswith("function ")
            yield (
                f"{name} was replaced"
                if bodies
                else f"{name} was {_short(before[name])}, and is {_short(text)}"
            )
    for name in before:
        if name not in after and not name.startswith(_HARMLESS_IF_GONE):
            yield f"{name} is gone"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"
