"""Tests of `sharequeue.local` that need no server."""
