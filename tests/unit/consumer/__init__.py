"""Tests of the share consumer that need no server."""
