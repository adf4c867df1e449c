"""Tests of `sharequeue.deadletters` that need no server."""
