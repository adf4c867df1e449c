"""The few names of Dagster that are imported although they are not public.

`tests/deep/deep_dagster_versions.py` imports them from Dagster's newest version.
"""

from __future__ import annotations

import importlib

from tests.fixtures.dagster_names import private_imports


def test_each_private_import_of_dagster_has_its_reason() -> None:
    """A comment above it says what Dagster has no public name for."""
    assert [(found.file, found.line) for found in private_imports() if not found.reason] == []


def test_the_library_imports_one_private_name() -> None:
    """All others are the tests' own."""
    ours = [found.code for found in private_imports() if not found.file.startswith("tests/")]
    assert ours == ["from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus"]


def test_the_installed_dagster_has_all_imported_private_names() -> None:
    for found in private_imports():
        module = importlib.import_module(found.module)
        assert [name for name in found.names if not hasattr(module, name)] == [], found
