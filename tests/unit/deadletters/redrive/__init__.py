"""Tests of `sharequeue.redrive` that need no server."""
