"""Tests of `sharequeue.local` against real servers."""
