"""Tests of `sharequeue.state` against real servers."""
