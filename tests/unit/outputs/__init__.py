"""Tests of `sharequeue.outputs` that need no server."""
