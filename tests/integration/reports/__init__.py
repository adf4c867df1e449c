"""Tests of `sharequeue.reports` against real servers."""
