"""Tests of `sharequeue.service` against real servers."""
