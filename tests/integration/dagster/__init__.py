"""Tests of `sharequeue.dagster` against real servers."""
