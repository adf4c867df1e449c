"""Tests of `sharequeue.groups` that need no server."""
