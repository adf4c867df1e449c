"""Tests of `sharequeue.reporting` that need no server."""
