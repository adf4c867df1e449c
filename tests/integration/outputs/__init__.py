"""Tests of `sharequeue.outputs` against real servers."""
