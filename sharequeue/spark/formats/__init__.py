"""Decode the values of records from bytes into columns.

`json`, `avro` and `protobuf` decode a column of the leased records in place, each in the same way: their result has
`outcome` and `error`, as a handler's result does. A record that decodes has the outcome accept; one that does not is
rejected, with the reason in `error`, and no other record is affected. So their result can be a handler's result as it
is, or be processed further, also by `by_row`.

`registry` reads from a schema registry, from the driver only. `decoded_column` is shared by the three.
"""

from __future__ import annotations

from sharequeue.spark.formats.avro_values import avro
from sharequeue.spark.formats.json_values import json
from sharequeue.spark.formats.protobuf_values import protobuf
from sharequeue.spark.formats.registry import Registry, Schema
from sharequeue.spark.handler import RegistryNotAvailable

__all__ = ["Registry", "RegistryNotAvailable", "Schema", "avro", "json", "protobuf"]
