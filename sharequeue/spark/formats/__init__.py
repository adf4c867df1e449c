"""How do the values of records, which are bytes, become columns?

`json`, `avro` and `protobuf` decode a column of the leased records in its place, each in the same way: what they
return has `outcome` and `error`, as a handler's result does. A record that decodes has the outcome accept; one that
does not is rejected, with the reason in `error`, and no other record is affected. So what they return may be a
handler's result as it stands, or be worked on further, also by `by_row`.

`registry` speaks with a schema registry, from the driver alone. `decided` is what the three have in common.
"""

from __future__ import annotations

from sharequeue.spark.contract import RegistryNotAvailable
from sharequeue.spark.formats.avro_values import avro
from sharequeue.spark.formats.json_values import json
from sharequeue.spark.formats.protobuf_values import protobuf
from sharequeue.spark.formats.registry import Registry, Schema

__all__ = ["Registry", "RegistryNotAvailable", "Schema", "avro", "json", "protobuf"]
