"""The parts of the reference that the code knows, compared with the pages.

`python -m tools.reference` writes these parts again: configs, settings, commands, endpoints, figures, metrics, error
names, checks, SQL functions and views, sinks, public names of Python; and the list of all names (`public_names`). A
part stands in a page between two markers; the text around them is written by hand. `test_reference.py` compares.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
from dagster import AssetCheckSeverity
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel

from sharequeue.cli import command
from sharequeue.dagster import checks
from sharequeue.dagster.quality.expectations import Expectation
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.state_checks import STATE_CHECKS
from sharequeue.domain.errors import ERRORS_BY_CODE, explanation
from sharequeue.domain.figures import GroupFigures, SharePartitionStatus, figures_of
from sharequeue.domain.settings import options, settings
from sharequeue.groups.configs.keys import GROUP_CONFIGS, SERVICE_CONFIGS, ConfigKey
from sharequeue.groups.configs.names import environment_name
from sharequeue.groups.configs.texts import as_text
from sharequeue.service.endpoints import ENDPOINTS
from sharequeue.service.metrics import families, registry
from sharequeue.service.openapi import document
from tools.pages import ROOT
from tools.reference_sql import functions, views
from tools.sinks import registered

SHARED = {
    *("home", "database_url", "bootstrap_servers", "service_url", "service_token_file"),
    *("output", "verbose", "all_groups", "yes"),
}
"""Options that the page says once for all commands."""
FOLDER = ROOT / "docs" / "reference"
CONFIG_DEFAULTS = ROOT / "sql" / "functions" / "20_groups" / "group_config_defaults.sql"
WRITE = "python -m tools.reference"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown. A bar inside a cell is escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """Return the text with what Markdown would read as a mark escaped; code between backticks stays."""
    parts = re.split(r"(`[^`]*`|<br>)", text.replace("|", "\\|"))
    return "".join(
        part if index % 2 else part.replace("<", "&lt;").replace("*", "\\*")
        for index, part in enumerate(parts)
    )


def _code(text: str) -> str:
    return f"`{text}`" if text else "empty"


def _bounds(key: ConfigKey) -> str:
    if key.kind == "boolean":
        return "`true` or `false`"
    if key.kind == "int":
        return f"{key.low:,} to {key.high:,}"
    return ", ".join(f"`{choice}`" for choice in key.choices) or "text"


def group_configs() -> str:
    """Return every config of a group: default, bounds, meaning."""
    rows = []
    for key in GROUP_CONFIGS.values():
        default = f"that of `{key.service_name}`" if key.default is None else _code(as_text(key.default))
        rows.append((f"`{key.name}`", default, _bounds(key), key.doc))
    return table(("config", "default", "allowed", "meaning"), rows)


def service_configs() -> str:
    """Return every config of the service, with the variable that sets it."""
    rows = []
    for key in SERVICE_CONFIGS.values():
        assert key.default is not None, key.name
        name = f"`{key.name}`<br>`{environment_name(key.name)}`"
        rows.append((name, _code(as_text(key.default)), _bounds(key), key.doc))
    return table(("config, variable", "default", "allowed", "meaning"), rows)


def _documented() -> Mapping[str, str]:
    """Return the docstrings of the settings by name: of attributes, and of properties."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse("\n".join(map(inspect.getsource, (settings, options))))):
        if not isinstance(node, ast.ClassDef):
            continue
        for each, following in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(each, ast.FunctionDef):
                found.setdefault(each.name, ast.get_docstring(each) or "")
            elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                text = following.value if isinstance(following, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    default = f" Default `{ast.unparse(each.value)}`." if each.value else ""
                    found[each.target.id] = " ".join(text.value.split()) + default.replace("'", "")
    return found


def environment() -> str:
    """Return every `SHAREQUEUE_*` variable, with what the code says of it."""
    documented = _documented()
    rows = []
    for field in settings.Environment.model_fields:
        short = field.removeprefix("service_").removeprefix("database_").removesuffix("_role")
        text = documented.get(field) or documented.get(short) or ""
        assert text, f"sharequeue/domain/settings/ says nothing of {field}"
        variable = f"`SHAREQUEUE_{field.upper()}`"
        said = re.sub(rf" \({variable}\)|(?<=\(){variable}, |^{variable}[,:] ", "", " ".join(text.split()))
        rows.append((variable, said[0].upper() + said[1:]))
    rows.append((f"`{settings.KAFKA_PREFIX}<NAME>`", documented["kafka"]))
    rows.append((f"`{settings.REGISTRY_PREFIX}<NAME>`", documented["registry"]))
    return table(("variable", "meaning"), rows)


def leaves(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that has no commands of its own, with its name."""
    for name, each in sorted(group.commands.items()):
        if isinstance(each, click.Group):
            yield from leaves(each, *names, name)
        else:
            yield " ".join((*names, name)), each


def _option(parameter: click.Option) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    kind = parameter.type
    choices = ", ".join(str(each) for each in kind.choices) if isinstance(kind, click.Choice) else ""
    notes = [parameter.help or ""]
    if choices:
        notes.append(f"One of: {choices}.")
    if parameter.required:
        notes.append("Required.")
    if isinstance(parameter.default, str | int | float) and not parameter.is_flag:
        notes.append(f"Default: {parameter.default}.")
    return names, " ".join(note for note in notes if note)


def commands() -> str:
    """Return every command with its arguments, options and columns; the options of all commands are said once."""
    parts = []
    for name, each in leaves(command):
        arguments = " ".join(p.name.upper() for p in each.params if isinstance(p, click.Argument) and p.name)
        usage = f"sharequeue {name} {arguments}".rstrip()
        parts.append(f"### `{usage}`\n\n" + inspect.cleandoc(each.help or ""))
        own = [p for p in each.params if isinstance(p, click.Option) and p.name not in SHARED]
        if own:
            parts.append(table(("option", "meaning"), map(_option, own)))
        for option, columns in each.callback.columns.items():  # type: ignore[union-attr]
            listed = ", ".join(f"`{column.name}`" for column in columns)
            parts.append(f"Columns{f' with `{option}`' if option else ''}: {listed}.")
    return "\n\n".join(parts)


def endpoints() -> str:
    """Return every endpoint of the service: the scope and the cost of a request, and what it is for."""
    rows = []
    for each in ENDPOINTS:
        purpose, _, _ = each.description.partition("\n\n")
        scope = "none" if each.is_open else f"`{each.scope}`"
        rows.append((f"`{each.method} {each.template}`", scope, str(each.cost), " ".join(purpose.split())))
    return table(("request", "scope", "cost", "returns"), rows)


def operations() -> str:
    """Return every request with a body: the fields of the body, and those of the response."""
    schemas = document(ENDPOINTS)["components"]["schemas"]
    rows = [
        (
            f"`{each.method} {each.template}`",
            _json_fields(schemas[each.body.__name__], schemas),
            _json_fields(schemas[each.answers[0].__name__], schemas),
        )
        for each in ENDPOINTS
        if each.body is not None
    ]
    return table(("request", "body", "response"), rows)


_IN_ALL = ("error_code", "error_message", "throttle_time_ms")
"""Fields of most responses, which the page names once."""


def _json_fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the fields of an object in JSON, each with those of its inner object in parentheses."""
    names = []
    for name, of in schema.get("properties", {}).items():
        inner = ", ".join(_json_fields(each, schemas) for each in _objects(of, schemas))
        if name not in _IN_ALL:
            names.append(f"`{name}` ({inner})" if inner else f"`{name}`")
    return ", ".join(names)


def _objects(of: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the types of a field that are objects, also those in a list."""
    for each in (of, *of.get("anyOf", ())):
        if "$ref" in each:
            yield schemas[each["$ref"].rpartition("/")[2]]
        elif "items" in each:
            yield from _objects(each["items"], schemas)


def metrics() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Return every metric of `GET /metrics`, sorted: name, type, labels, meaning."""
    own = registry.Own()
    found: list[tuple[str, str, tuple[str, ...], str]] = [
        (each.name, each.kind, each.labels, each.meaning) for each in families.all_families()
    ]
    for counted in vars(own).values():
        for each in counted.describe() if isinstance(counted, MetricWrapperBase) else ():
            name = each.name + ("_total" if each.type == "counter" else "")
            found.append((name, each.type, counted._labelnames, each.documentation))
    return sorted(found)


def metric_names() -> str:
    """Return every metric of `GET /metrics`: type, labels, meaning."""
    rows = [
        (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels) or "–", meaning)
        for name, kind, labels, meaning in metrics()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


def figures(*, ended: bool) -> str:
    """Return the columns of `groups describe`: outcomes, or the others."""
    rows = [
        (f"`{each.command}`", each.unit, each.words)
        for each in figures_of(SharePartitionStatus)
        if each.command and each.ended is ended
    ]
    return table(("column", "unit", "meaning"), rows)


def figures_of_groups() -> str:
    """Return the figures of a group: where each is shown, and what it is."""
    rows = [
        (
            f"`{each.name}`",
            *(f"`{name}`" if name else "–" for name in (each.command, each.dagster)),
            each.title or "–",
            each.unit,
            each.words,
        )
        for each in figures_of(GroupFigures)
    ]
    return table(("column of the view", "command", "Dagster", "page", "unit", "meaning"), rows)


def errors() -> str:
    """Return every error: Kafka's number and name, SQLSTATE, whether the same call may succeed later, meaning."""
    rows = []
    for code, error in sorted(ERRORS_BY_CODE.items()):
        state = f"`SQ{code:03}`" if code > 0 else "–"
        again = "yes" if error.retriable else "no"
        rows.append((str(code), f"`{error.name}`", state, again, explanation(error)))
    return table(("number", "name", "SQLSTATE", "repeat the call", "meaning"), rows)


def defs_yaml() -> str:
    """Return every field of a `defs.yaml`: its default, and what it is for."""
    return table(("field", "default", "meaning"), fields(ShareGroup))


def dead_letter_checks() -> str:
    """Return every check of the dead letters, with what must hold."""
    return table(("check", "what must hold"), (_check(each) for each in checks.expectations()))


def _check(expectation: Expectation) -> tuple[str, str]:
    is_warning = expectation.severity != "critical"
    return f"`{expectation.check}`{' (warning)' if is_warning else ''}", expectation.description


def state_checks() -> str:
    """Return every check of a group's state, with what must hold; a bound of the yaml has its name."""
    rows = []
    for each in STATE_CHECKS:
        note = " (warning)" if each.severity == AssetCheckSeverity.WARN else ""
        rows.append((f"`{each.name}`{note}", re.sub(r"{(\w+)[^}]*}", r"`\1`", each.description)))
    return table(("check", "what must hold"), rows)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, ...]]:
    """Yield the fields of a model, those of inner models too: name, default, meaning."""
    for name, field in model.model_fields.items():
        inner = next(
            (each for each in (field.annotation, *get_args(field.annotation)) if _is_model(each)), None
        )
        if inner is not None:
            doc = " ".join(inspect.cleandoc(inner.__doc__ or "").split())
            default = "none" if field.default in (None, []) else "see below"
            yield f"`{prefix}{name}`", "required" if field.is_required() else default, doc
            yield from fields(inner, f"{prefix}{name}.")
        else:
            value = field.get_default(call_default_factory=True)
            shown = "none" if value in (None, "", [], {}) else f"`{as_text(value)}`"
            yield f"`{prefix}{name}`", "required" if field.is_required() else shown, field.description or ""


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def sinks() -> str:
    """Return every sink, with the first paragraph of its docstring."""
    rows = []
    for each in registered():
        first, _, _ = inspect.cleandoc(each.__doc__ or "").partition("\n\n")
        rows.append((f"`{each.__name__}`", " ".join(first.split())))
    return table(("sink", "where accepted records go"), rows)


def python_names(module: str) -> str:
    """Return the public names of a package, the methods of its classes included, with what their docstrings say."""
    package, rows = import_module(module), list[tuple[str, str]]()
    for name in package.__all__:
        value = getattr(package, name)
        rows.append((f"`{name}`", _purpose(value)))
        for member, made in vars(value).items() if inspect.isclass(value) else ():
            method = getattr(made, "__func__", made)
            if not member.startswith("_") and (inspect.isfunction(method) or isinstance(made, property)):
                rows.append(
                    (f"`{name}.{member}{'' if isinstance(made, property) else '()'}`", _purpose(method))
                )
    return table(("name", "purpose"), rows)


def _purpose(value: object) -> str:
    first, _, _ = inspect.cleandoc(getattr(value, "__doc__", None) or "").partition("\n\n")
    return re.sub(r":\w+:`", "`", " ".join(first.split()).replace("``", "`"))


PARTS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "group configs": ("configs.md", group_configs),
    "service configs": ("configs.md", service_configs),
    "dead-letter checks": ("checks.md", dead_letter_checks),
    "state checks": ("checks.md", state_checks),
    "defs.yaml": ("defs-yaml.md", defs_yaml),
    "environment": ("settings.md", environment),
    "commands": ("commands.md", commands),
    "endpoints": ("http.md", endpoints),
    "operations": ("http.md", operations),
    "metrics": ("metrics.md", metric_names),
    "present figures": ("figures.md", partial(figures, ended=False)),
    "ended records": ("figures.md", partial(figures, ended=True)),
    "figures of groups": ("figures.md", figures_of_groups),
    "errors": ("errors.md", errors),
    "functions": ("sql.md", functions),
    "views": ("sql.md", views),
    "sinks": ("../howto/sinks.md", sinks),
    **{
        name: ("python.md", partial(python_names, name))
        for name in ("sharequeue", "sharequeue.spark", "sharequeue.dagster", "sharequeue.testing")
    },
}
"""The parts: the page of each, from `FOLDER`, and its function."""


def written(page: Path) -> str:
    """Return the page with its parts as the code has them now."""
    text = page.read_text()
    for name, (file, part) in PARTS.items():
        if _page(file) != page:
            continue
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        assert found, f"{page} has no place for {name}: {begin}"
        assert closed, f"{page} has no end of {name}: {end}"
        text = f"{before}{begin}\n\n{part()}\n\n{end}{after}"
    return re.sub(r"[ \t]+\n", "\n", text)


LOCK_BOUNDS = ("group.share.max.record.lock.duration.ms", "group.share.min.record.lock.duration.ms")
"""Bounds of the service that apply where it has not set them, to an acquire's argument too."""


def config_defaults() -> str:
    """Return the SQL of the configs that a group may have and of their defaults, as `keys.py` declares them."""
    values: dict[str, str] = {}
    for name, key in sorted(GROUP_CONFIGS.items()):
        default = SERVICE_CONFIGS[key.service_name].default if key.service_name else key.default
        assert default is not None, f"{name} has no default"
        values[name] = as_text(default)
    names = ",\n".join(f"        '{name}'" for name in values)
    bounds = {name: as_text(SERVICE_CONFIGS[name].default or "") for name in LOCK_BOUNDS}
    cases = "\n".join(f"        when '{name}' then '{value}'" for name, value in (bounds | values).items())
    return f"""\
-- The configs that a group may have, and the value of each that neither the group nor the service has set.
-- Generated from sharequeue/groups/configs/keys.py: do not edit, run `{WRITE}`.

create or replace function sharequeue_internal.group_config_names() returns text[]
language sql immutable parallel safe as $$
    select array[
{names}]
$$;

-- Return the default of a group's config, or of a bound of a lock's duration; null if there is no such config.
create or replace function sharequeue_internal.group_config_default(p_name text) returns text
language sql immutable parallel safe as $$
    select case p_name
{cases}
    end
$$;
"""


def pages() -> list[Path]:
    """Return the pages that have such parts."""
    return sorted({_page(file) for file, _ in PARTS.values()})


def _page(file: str) -> Path:
    return (FOLDER / file).resolve()


if __name__ == "__main__":
    from tools import public_names

    public_names.FILE.write_text(public_names.listed())
    for each in pages():
        each.write_text(written(each))
    CONFIG_DEFAULTS.write_text(config_defaults())
