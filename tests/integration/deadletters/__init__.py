"""Tests of `sharequeue.deadletters` against real servers."""
