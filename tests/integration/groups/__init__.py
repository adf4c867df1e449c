"""Tests of `sharequeue.groups` against real servers."""
