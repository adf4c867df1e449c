"""Tests of the command against real servers."""
