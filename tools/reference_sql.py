"""The SQL functions and views of each role, and what each is for.

Read from the files of `sql/`: the lists of grants are in the file that defines `apply_permissions`, the purpose of a
function or view is the comment above it, the columns of a view are what it selects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sharequeue.database.schema_files import migrations

_MADE = re.compile(
    r"(?P<purpose>(?:^--[^\n]*\n)*)^create (?:or replace )?(?P<kind>function|view) sharequeue\.(?P<name>\w+)",
    re.MULTILINE,
)
_GRANTS = re.compile(r"v_(worker|service|reader|everybody) constant text\[\] := array\[(.*?)\]", re.DOTALL)


def _files() -> list[str]:
    return [each.text for each in migrations() if each.repeatable]


def granted() -> Mapping[str, list[str]]:
    """Return who may call which function: the names of functions by role, from the list of grants."""
    found: dict[str, list[str]] = {}
    for text in _files():
        if "function sharequeue.apply_permissions" in text:
            for role, names in _GRANTS.findall(text):
                for name in re.findall(r"'(\w+)'", names):
                    found.setdefault(name, []).append(role)
    assert found, "no file grants anything to v_worker, v_service, v_reader and v_everybody"
    return found


def _purpose(comment: str) -> str:
    """Return the first paragraph of the comment above a thing. What follows it is for those who change the thing."""
    lines = [line.removeprefix("--").strip() for line in comment.strip().splitlines()]
    said = " ".join("\n".join(lines).partition("\n\n")[0].split())
    return re.sub(r"\s*\(R-[^)]*\)", "", said)


def _signature(text: str, start: int) -> str:
    """Return the arguments and the result of the function whose name ends at `start`."""
    depth, end = 0, start
    for end in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            break
    arguments = " ".join(text[start + 1 : end].split())
    result = re.match(r"\s*returns (.+?)\s+language ", re.sub(r"--[^\n]*", "", text[end + 1 :]), re.DOTALL)
    returned = " ".join(result.group(1).split()).replace("( ", "(").replace(" )", ")") if result else ""
    return f"({arguments})" + (f" → {returned}" if returned else "")


def functions() -> str:
    """Return every function that a role may call: who, signature, purpose."""
    roles, parts = granted(), {}
    for text in _files():
        for made in _MADE.finditer(text):
            name = made["name"]
            if made["kind"] == "function" and name in roles:
                who = ", ".join("everybody" if role == "everybody" else role for role in roles[name])
                signature = f"{name}{_signature(text, made.end())}".replace("sharequeue.", "")
                said = _purpose(made["purpose"])
                parts[name] = f"### `{name}`\n\nFor: {who}. {said}\n\n```text\n{_wrapped(signature)}\n```"
    missing = roles.keys() - parts.keys()
    assert not missing, f"granted, and made by no file: {sorted(missing)}"
    return "\n\n".join(parts[name] for name in sorted(parts))


def _wrapped(signature: str) -> str:
    """Return the signature, its arguments in lines of at most 100 characters."""
    lines, line = [], ""
    for word in re.split(r"(?<=,) |(?<=\)) (?=→)", signature):
        if line and len(line) + len(word) > 98:
            lines.append(line)
            line = "    " + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def _columns(select: str) -> list[str]:
    """Return the names of the columns that the first select of a view gives."""
    body = re.sub(r"--[^\n]*|'[^']*'", "", select)
    found, depth, item = [], 0, ""
    for word in re.split(r"([(),]|\bfrom\b|\bcase\b|\bend\b)", body):
        depth += {"(": 1, "case": 1, ")": -1, "end": -1}.get(word, 0)
        if depth == 0 and word in (",", "from"):
            found.append(item)
            item = ""
            if word == "from":
                break
        else:
            item += word
    return [re.findall(r"\w+", each)[-1] for each in found]


def _views() -> Iterator[tuple[str, str, list[str]]]:
    """Yield every view: name, purpose, columns."""
    for text in _files():
        for made in _MADE.finditer(text):
            if made["kind"] == "view":
                _, _, select = text[made.end() :].partition("select")
                yield made["name"], _purpose(made["purpose"]), _columns(select)


def columns_of_views() -> dict[str, list[str]]:
    """Return the columns of every view."""
    return {name: columns for name, _, columns in _views()}


def views() -> str:
    """Return every view: columns, purpose."""
    return "\n\n".join(
        f"### `{name}`\n\n{purpose}\n\nColumns: {', '.join(f'`{column}`' for column in columns)}."
        for name, purpose, columns in sorted(_views())
    )
