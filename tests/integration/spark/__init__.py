"""Tests of `sharequeue.spark` against real servers."""
