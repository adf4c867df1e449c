"""The names and types of a `defs.yaml`: its JSON schema, and the check of a file when it is loaded.

Dagster derives the JSON schema for `dg check yaml` from the model, and allows a text in place of every value, because
a template may return the value. In its schema this is `anyOf`, whose errors name neither the field nor the expected
value. The schema here uses `if` instead, so that the errors name both.

When a file is loaded, Dagster's model has an error for each type that a value does not have, at each level above it.
The check here comes first, and has one error for one mistake.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel, create_model, model_validator

from sharequeue.dagster.share_group import ShareGroup
from sharequeue.domain.names import listed, nearest

__all__ = ["with_plain_schema"]

_Schema = Mapping[str, Any]

_WORDS = {
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_OF_COMPONENT = ("translation", "topic_translation", "topic_assets")
"""The fields that a component has in addition to those of `ShareGroup`."""
_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off"})
_SHOWN = 80
"""Characters of a value in a message."""


class _PlainSchema(BaseModel):
    """A base of a model whose JSON schema is the one of `ShareGroup`, with templates allowed."""

    @model_validator(mode="before")
    @classmethod
    def _has_known_names_and_types(cls, attributes: Any) -> Any:
        if not isinstance(attributes, Mapping):
            return attributes
        fields, models = _fields_of(cls)
        checked = {
            name: _checked(name, value, fields[name], models)
            for name, value in attributes.items()
            if name in fields
        }
        # What is in a translation is for Dagster to read.
        return {**attributes, **{name: value for name, value in checked.items() if name not in _OF_COMPONENT}}

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the JSON schema: fields that a subclass of the component has added are as Dagster derives them."""
        schema, ours = super().model_json_schema(*args, **kwargs), ShareGroup.model_json_schema()
        known = [*schema["properties"]]
        for model in (*ours["$defs"].values(), ours):
            names = known if model is ours else [*model["properties"]]
            # An error of this points to the line of the unknown field and names the known ones; an error of
            # `additionalProperties: false` and of `propertyNames` points to the field above.
            model["additionalProperties"] = {"const": f"one of the fields {', '.join(names)}"}
            model["properties"] = {
                name: _plain(field, ours["$defs"]) for name, field in model["properties"].items()
            }
        of_component = {name: _plain(field, schema["$defs"]) for name, field in _of_component(schema).items()}
        return {
            **schema,
            "additionalProperties": ours["additionalProperties"],
            "properties": schema["properties"] | of_component | ours["properties"],
            "$defs": schema.get("$defs", {}) | ours["$defs"],
        }


@cache
def with_plain_schema(model: type[BaseModel]) -> type[BaseModel]:
    """Return Dagster's model of a component with the schema and the check of this module."""
    return create_model(model.__name__, __base__=(_PlainSchema, model), __module__=model.__module__)


@cache
def _fields_of(model: type[_PlainSchema]) -> tuple[_Schema, _Schema]:
    """Return the schemas of the fields that are checked here, and of the models in them."""
    ours, derived = ShareGroup.model_json_schema(), super(_PlainSchema, model).model_json_schema()
    return _of_component(derived) | ours["properties"], derived.get("$defs", {}) | ours["$defs"]


def _of_component(derived: _Schema) -> dict[str, _Schema]:
    """Return the schemas of the fields that only a component has, from those that Dagster derives: there they may be
    texts, but only because of templates. A subclass may have declared them as something else, which is left out.
    """
    found: dict[str, _Schema] = {}
    for name in _OF_COMPONENT:
        field = derived["properties"].get(name, {})
        options = [each for each in _options(field) if each.get("type") != "string"]
        if options and all("type" in _model(each, derived.get("$defs", {})) for each in options):
            found[name] = {**field, "anyOf": options}
    return found


def _checked(path: str, value: Any, field: _Schema, models: _Schema) -> Any:
    """Return a value as Dagster must get it, so that a text stays one (`_kept`).

    Raises ValueError for a value of a wrong type, and for a wrong, unknown or missing name in it, at any depth.
    """
    if isinstance(value, str) and "{{" in value:
        return value
    options = [_model(option, models) for option in _options(field)]
    if not all("type" in option for option in options):
        return value
    is_text = not options or any(option["type"] == "string" for option in options)
    meant = _literal(value) if isinstance(value, str) and not is_text else value
    types = _types(meant)
    fitting = [option for option in options if option["type"] in types]
    if options and not fitting:
        raise ValueError(f"{path} is {_shown(value)}: expected {' or '.join(_words(options))}")
    option = fitting[0] if len(fitting) == 1 else {}
    if meant not in option.get("enum", [meant]):
        raise ValueError(f"{path} is {_shown(value)}: expected {' or '.join(option['enum'])}")
    if "properties" in option:
        _require_names(path, meant, option)
    if isinstance(value, str):
        return _kept(value) if is_text else value
    return _inner(path, value, option, models)


def _require_names(path: str, value: Mapping[str, Any], option: _Schema) -> None:
    for name in value:
        if name not in option["properties"]:
            raise ValueError(
                f"{path} has no field {name!r}. {nearest(str(name), option['properties'], 'fields')}"
            )
    for name in option.get("required", ()):
        if name not in value:
            raise ValueError(
                f"{path} needs the field {name!r}: it has {listed([*map(str, value)], 5) or 'none'}"
            )


def _inner(path: str, value: Any, option: _Schema, models: _Schema) -> Any:
    """Return a value whose inner values are checked."""
    if isinstance(value, Mapping):
        known, others = option.get("properties", {}), option.get("additionalProperties")
        rest = others if isinstance(others, Mapping) else {}
        return {
            name: _checked(f"{path}.{name}", each, known.get(name, rest), models)
            for name, each in value.items()
        }
    if isinstance(value, list):
        items = option.get("items", {})
        return [_checked(f"{path}[{number}]", each, items, models) for number, each in enumerate(value)]
    return value


def _options(field: _Schema) -> Sequence[_Schema]:
    options: Sequence[_Schema] = field.get("anyOf", [field] if field else [])
    return options


def _types(value: Any) -> Sequence[str]:
    """Return the types of JSON that a value has; all of them for one that is not of JSON."""
    match value:
        case None:
            return ["null"]
        case bool():
            return ["boolean"]
        case int():
            return ["integer", "number"]
        case float():
            return ["integer", "number"] if value.is_integer() else ["number"]
        case str():
            return ["string", "boolean"] if value.lower() in _BOOLEANS else ["string"]
        case Mapping():
            return ["object"]
        case Sequence():
            return ["array"]
        case _:
            return [*_WORDS, "object"]


def _words(options: Sequence[_Schema]) -> Iterator[str]:
    """Yield what a field may have, in words."""
    for option in options:
        if option["type"] != "object":
            yield _WORDS[option["type"]]
        elif "properties" in option:
            yield f"fields ({listed([*option['properties']])})"
        else:
            yield "names with values"


def _literal(text: str) -> Any:
    """Return what Dagster makes of a text: of `"5"` a number, of `"None"` nothing, of `"'a'"` one without quotes."""
    try:
        return ast.literal_eval(ast.parse(text, mode="eval"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _kept(text: str) -> str:
    """Return the text of which Dagster makes this one. One in Python's quotes is for Dagster, which removes them."""
    return text if isinstance(_literal(text), str) else repr(text)


def _shown(value: Any) -> str:
    """Return a value as the file may have it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _plain(field: _Schema, models: _Schema) -> dict[str, Any]:
    """Return the schema of a field with `if` in place of `anyOf`, and with a text in braces for every type."""
    options = field.get("anyOf", [field])
    typed = {_model(option, models)["type"]: option for option in options}
    rest = {name: value for name, value in field.items() if name in ("title", "description", "default")}
    return {
        **rest,
        "type": [*typed, *({"string"} - typed.keys())],
        "examples": [rest.get("default") or "..."],
        "allOf": [
            {"if": {"type": name}, "then": option} for name, option in typed.items() if name != "string"
        ]
        + [{"if": {"type": "string"}, "then": _text(typed)}],
    }


def _text(typed: _Schema) -> dict[str, Any]:
    """Return the schema of a text: a template, or a value if the field's type is text."""
    template = {"pattern": r"\{\{"}
    if "string" not in typed:
        return {"if": template, "else": {"type": [*typed]}}
    return {
        "if": template,
        "else": {name: value for name, value in typed["string"].items() if name == "enum"},
    }


def _model(option: _Schema, models: _Schema) -> _Schema:
    named: _Schema = models[option["$ref"].rpartition("/")[2]] if "$ref" in option else option
    return named
