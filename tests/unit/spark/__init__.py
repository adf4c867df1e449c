"""Tests of `sharequeue.spark` that need no server."""
