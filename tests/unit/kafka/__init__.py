"""Tests of `sharequeue.kafka` that need no server."""
