"""Tests of `sharequeue.domain` that need no server."""
