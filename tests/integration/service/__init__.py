"""Tests of the pages of `sharequeue.service` against real servers."""
