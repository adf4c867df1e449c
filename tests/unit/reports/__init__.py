"""Tests of `sharequeue.reports` that need no server."""
