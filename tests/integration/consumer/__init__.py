"""Tests of `sharequeue.consumer` against real servers."""
