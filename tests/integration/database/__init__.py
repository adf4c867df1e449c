"""Tests of `sharequeue.database` against real servers."""
