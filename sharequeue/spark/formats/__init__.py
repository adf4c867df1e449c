"""Decode the values of records from bytes into columns.

`json` and `avro` decode a column of the leased records in place, both in the same way: their result has `outcome` and
`error`, as a handler's result does. A record that decodes has the outcome accept; one that does not is rejected, with
the reason in `error`, and no other record is affected. So their result can be a handler's result as it is, or be
processed further, also by `by_row`, which also decodes any other format.

`decoded_column` is shared by both. `Registry` is that of `sharequeue.spark.registry`.
"""

from __future__ import annotations

from sharequeue.spark.formats.avro_values import avro
from sharequeue.spark.formats.json_values import json
from sharequeue.spark.handler import RegistryNotAvailable
from sharequeue.spark.registry import Registry

__all__ = ["Registry", "RegistryNotAvailable", "avro", "json"]
