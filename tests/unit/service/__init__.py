"""Tests of `sharequeue.database` that need no server."""
