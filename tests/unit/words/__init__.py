"""Tests of `sharequeue.words` that need no server."""
