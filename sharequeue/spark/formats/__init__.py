"""Decode the values of records from bytes into columns.

`json` and `avro` decode a column of the leased records in place, both in the same way: their result has `outcome` and
`error`, as a handler's result does. A record that decodes has the outcome accept; one that does not is rejected, with
the reason in `error`, and no other record is affected. So their result can be a handler's result as it is, or be
processed further, also by `by_row`, which also decodes any other format.

`registry` reads from a schema registry, from the driver only. `decoded_column` is shared by both.
"""

from __future__ import annotations

from sharequeue.spark.formats.avro_values import avro
from sharequeue.spark.formats.json_values import json
from sharequeue.spark.formats.registry import Registry
from sharequeue.spark.handler import RegistryNotAvailable

__all__ = ["Registry", "RegistryNotAvailable", "avro", "json"]
