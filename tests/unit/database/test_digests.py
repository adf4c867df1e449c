"""Digests that a server in FIPS mode computes."""

from __future__ import annotations

from sharequeue.database.schema_files import migrations


def test_no_operation_needs_md5() -> None:
    """Azure's servers and others refuse it: "could not compute MD5 hash: disabled for FIPS"."""
    assert [each.name for each in migrations() if "md5(" in each.text] == []
