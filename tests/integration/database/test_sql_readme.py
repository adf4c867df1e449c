"""``sql/README.md`` says what is so."""

from __future__ import annotations

import re

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.schema_files import migrations, sql_root

README = (sql_root() / "README.md").read_text()


def _graph() -> list[tuple[str | None, str]]:
    """Every line of the call graph: the function that calls, None for the first, and the one that is called."""
    (graph,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    above: list[str] = []
    found: list[tuple[str | None, str]] = []
    for line in filter(None, graph.splitlines()):
        name, depth = line.split()[0], (len(line) - len(line.lstrip())) // 4
        above[depth:] = [name]
        found.append((above[depth - 1] if depth else None, name))
    return found


def test_the_call_graph_is_of_functions_that_call_each_other(database: Database) -> None:
    """Every function in it exists, and the one above it has it in its text."""
    rows = database.rows(
        sa.text(
            "select proname as name, prosrc as source from pg_proc"
            " where pronamespace in (to_regnamespace('sharequeue'), to_regnamespace('sharequeue_internal'))"
        )
    )
    sources = {row["name"]: row["source"] for row in rows}
    graph = _graph()
    assert len(graph) > 70
    assert [name for _, name in graph if name not in sources] == []
    assert [
        (caller, name)
        for caller, name in graph
        if caller is not None and not re.search(rf"sharequeue(_internal)?\.{name}\(", sources[caller])
    ] == []


def test_every_folder_is_explained() -> None:
    """The table names all folders of functions, and the files beside them."""
    told = set(re.findall(r"^\| `functions/(\w+)(?:/|\.sql)`", README, re.MULTILINE))
    assert told == {f.name.split("/")[1].removesuffix(".sql") for f in migrations() if f.repeatable}
