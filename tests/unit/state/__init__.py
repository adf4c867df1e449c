"""Tests of `sharequeue.state` that need no server."""
