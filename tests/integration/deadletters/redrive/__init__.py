"""Tests of `sharequeue.redrive` against real servers."""
