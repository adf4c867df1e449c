"""Tests of `sharequeue.dagster` that need no server."""
