"""Check values with a JSON schema, by exact numbers, and write them as JSON.

A float in the place of a decimal would lose digits, and 19.99 would be no multiple of 0.01. The schema must be whole:
what it refers to is in it, so that nothing is fetched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value

__all__ = ["JsonValues", "as_json"]

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class ExactNumber(Decimal):
    """A number with a point or an exponent, which is written as it was read."""

    text: str

    def __new__(cls, text: str) -> ExactNumber:
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __repr__(self) -> str:
        return self.text


class JsonValues:
    """The values that fit a schema. Without `$schema`, it is of draft 7, as it is to the registry and to Java."""

    def __init__(self, text: str) -> None:
        """Read the text of a schema. Raises ValueError if it refers to something that is not in it, or is of draft 3,
        and an error of jsonschema if it is invalid.
        """
        from jsonschema.validators import Draft7Validator, validator_for
        from referencing import Registry
        from referencing.jsonschema import DRAFT3, DRAFT4, DRAFT6, DRAFT7

        self.schema = json.loads(text, parse_float=ExactNumber)
        kind = validator_for(self.schema, default=Draft7Validator)
        kind.check_schema(json.loads(text))
        specification = DRAFT7.detect(self.schema)
        if specification is DRAFT3:
            raise ValueError("it is of draft 3: expected draft 4 or later")
        if isinstance(self.schema, dict):
            # A part that refers to the whole would be checked by jsonschema's own class, without exact numbers.
            self.schema.pop("$schema", None)
        self._targets = _targets(self.schema, specification)
        # Up to draft 7, what is beside a reference does not count.
        self._alone = specification in (DRAFT4, DRAFT6, DRAFT7)
        self._parts: dict[tuple[int, Sequence[str]], list[dict[str, Any]]] = {}
        # A registry without `retrieve` fetches nothing.
        self._validator = _exact(kind)(self.schema, registry=Registry())

    def parsed(self, text: str) -> Any:
        """Return the field `value` of an object, without the null fields that the schema names and does not require.
        Raises jsonschema's ValidationError if it does not fit.
        """
        value = json.loads(text, parse_float=ExactNumber)["value"]
        value = self._without_optional_nulls(value, [self.schema])
        self._validator.validate(value)
        return value

    def parts(self, schema: Any, combined: Sequence[str] = ("allOf",)) -> list[dict[str, Any]]:
        """Return a schema with those that it refers to and those that it combines: all are of the same value."""
        key = id(schema), combined
        if key not in self._parts:
            self._parts[key] = found = []
            left, seen = [schema], set()
            while left:
                each = left.pop(0)
                if not isinstance(each, dict) or id(each) in seen:
                    continue
                seen.add(id(each))
                left += self._targets.get(id(each), ())
                if "$ref" not in each or not self._alone:
                    found.append(each)
                    left += [part for name in combined for part in each.get(name, ())]
        return self._parts[key]

    def _without_optional_nulls(self, value: Any, schemas: Sequence[Any]) -> Any:
        if not isinstance(value, dict | list):
            return value
        parts = [part for each in schemas for part in self.parts(each, ("allOf", "anyOf", "oneOf"))]
        if isinstance(value, list):
            return [self._without_optional_nulls(each, _of_item(parts, at)) for at, each in enumerate(value)]
        required = {name for part in parts for name in part.get("required", ())}
        named = {
            name: [p["properties"][name] for p in parts if name in p.get("properties", ())] for name in value
        }
        others = [part.get("additionalProperties") for part in parts]
        return {
            name: self._without_optional_nulls(each, named[name] or others)
            for name, each in value.items()
            if each is not None or name in required or not named[name]
        }


def _of_item(parts: Sequence[dict[str, Any]], at: int) -> list[Any]:
    """Return the schemas of an item of an array."""
    found = []
    for part in parts:
        first, others = part.get("prefixItems"), part.get("items")
        if isinstance(others, list):  # up to draft 2019-09
            first, others = others, part.get("additionalItems")
        found.append(first[at] if first and at < len(first) else others)
    return found


def as_json(value: Any) -> str:
    """Return a value as a text of JSON."""
    if isinstance(value, ExactNumber):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{as_json(name)}:{as_json(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _targets(schema: Any, specification: Any) -> dict[int, list[Any]]:
    """Return the schemas to which references lead, by the id of the object that has them. Raises ValueError for a
    reference that leads neither to a part of the schema nor to a schema of JSON Schema itself.
    """
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable

    found: dict[int, list[Any]] = {}
    seen: set[int] = set()
    root = specification.create_resource(schema)
    left = [(root, REGISTRY.resolver_with_root(root))]
    while left:
        resource, resolver = left.pop()
        part = resource.contents
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        left += [(each, resolver.in_subresource(each)) for each in resource.subresources()]
        for reference in (part[name] for name in _REFERENCES if name in part):
            try:
                target = resolver.lookup(reference)
            except Unresolvable as error:
                raise ValueError(f"it refers to {reference}, which is not in it: include it") from error
            found.setdefault(id(part), []).append(target.contents)
            left.append((specification.create_resource(target.contents), target.resolver))
    return found


def _exact(kind: Any) -> Any:
    """Return a class of jsonschema for ExactNumber."""
    from jsonschema.validators import extend

    types = kind.TYPE_CHECKER
    # Draft 4 does not count 1.0 as an integer.
    with_point = types.is_type(1.0, "integer")

    def is_integer(checker: Any, value: Any) -> bool:
        if isinstance(value, ExactNumber):
            return bool(with_point and value == value.to_integral_value())
        return bool(types.is_type(value, "integer"))

    checker = types.redefine("integer", is_integer)
    return extend(kind, {"multipleOf": _multiple_of}, type_checker=checker)  # type: ignore[no-untyped-call]


def _multiple_of(validator: Any, divisor: Any, value: Any, schema: Any) -> Iterator[Exception]:
    from jsonschema import ValidationError

    if validator.is_type(value, "number") and Fraction(value) % Fraction(divisor):
        yield ValidationError(f"{value!r} is not a multiple of {divisor!r}")


# The module is sent to the executors by value: they do not need this package.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
