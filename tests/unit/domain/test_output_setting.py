"""An output is a path or a URI; what cannot be either is refused when the settings are read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sharequeue.domain.settings import Settings
from sharequeue.domain.settings.addresses import is_uri, located


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/data/out", "/data/out"),
        ("out", str(Path("out").absolute())),
        ("a:b", str(Path("a:b").absolute())),
        ("file:/data/out/", "file:/data/out"),
        ("hdfs://namenode:8020/out/", "hdfs://namenode:8020/out"),
        ("hdfs:/out", "hdfs:/out"),
        ("s3a://bucket", "s3a://bucket"),
        ("s3a://bucket/out put//", "s3a://bucket/out put"),
        (
            "abfs://container@account.dfs.core.windows.net/out",
            "abfs://container@account.dfs.core.windows.net/out",
        ),
        ("viewfs://cluster/out", "viewfs://cluster/out"),
    ],
)
def test_a_uri_stays_and_a_path_becomes_absolute(given: str, kept: str) -> None:
    assert located(given) == kept == Settings.load("/nowhere", output=given).output
    assert is_uri(given) == given.startswith(("file:", "hdfs:", "s3a:", "abfs:", "viewfs:"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("s3://bucket/out", "write s3a://bucket/folder"),
        ("s3n://bucket/out", "write s3a://bucket/folder"),
        ("s3a:bucket/out", "is not a URI: write s3a://bucket/folder"),
        ("s3a:///out", "has no bucket"),
        ("gs:/out", "has no bucket"),
        ("abfss:///out", "has no container@account"),
        ("s3a://key:hidden@bucket/out", "contains a password"),
    ],
)
def test_what_is_no_output_is_said_at_once(given: str, said: str) -> None:
    """With what to write instead, and without a password that was in it."""
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        Settings.load("/nowhere", output=given)
    assert "hidden" not in str(raised.value)
